"""FedMD (Li and Wang 2019): clients keep their models and send logits on a public transfer set.

In each round, clients train on their own examples and then send their logits for the transfer set. The mean of these
logits is the consensus. Each client then trains on the consensus, with the same distillation as FedDF's server
(``method.server_distillation``). The clients' architectures may differ (``method.models``). For differences from the
paper and its code, see docs/federated-distillation.md.

State: see :mod:`own_models`.
"""

from __future__ import annotations

from dataclasses import replace

from knot_runner.config.settings.methods.algorithms import FedMdSettings
from knot_runner.methods.around.server_distillation import answer, ask, distilled_facts, fold, plan, reads
from knot_runner.methods.federated import own_models
from knot_runner.methods.messages import Exchange


def exchange(config: FedMdSettings) -> Exchange:
    """Return the exchange in which clients send logits for the transfer set and train on the mean of these logits."""
    return Exchange(ask, answer, plan, fold, reads(config.server_distillation), answered_by="clients")


FEDMD = replace(own_models.LOCAL, exchange=exchange, facts=distilled_facts)
