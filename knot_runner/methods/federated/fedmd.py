"""FedMD (Li and Wang 2019): clients keep their models and share logits of public examples.

In a round they train on their own examples, then send their logits for the transfer set. Each client fits the
consensus, the mean of these logits, by the same distillation as FedDF's server (``method.server_distillation``). Their
architectures may differ (``method.models``). Differences from the paper and its code: feddf.md.

State: :mod:`own_models`.
"""

from __future__ import annotations

from dataclasses import replace

from knot_runner.config.settings.methods.algorithms import FedMdSettings
from knot_runner.methods.around.server_distillation import answer, ask, distilled_facts, fold, plan, reads
from knot_runner.methods.federated import own_models
from knot_runner.methods.messages import Exchange


def exchange(config: FedMdSettings) -> Exchange:
    """Return the exchange of logits of public examples, and the clients' training on their consensus."""
    return Exchange(ask, answer, plan, fold, reads(config.server_distillation), answered_by="clients")


FEDMD = replace(own_models.LOCAL, exchange=exchange, facts=distilled_facts)
