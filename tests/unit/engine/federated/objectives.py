"""Objectives of tests that stand at the top of a module, as worker processes must find them."""

import torch

from knot_runner.engine.objectives import Objective


def pulled_to_start(settings, inputs):
    """Squared distance from the target logits of each row, and KL divergence from what the start said of it."""
    rows = {"targets": inputs.tensors["targets"], "start": torch.log_softmax(inputs.start_logits(), 1)}

    def loss(logits, rows):
        log_p = torch.log_softmax(logits, 1)
        kept = (rows["start"].exp() * (rows["start"] - log_p)).sum(1)
        return (logits - rows["targets"]).square().mean(1) + settings["weight"] * kept

    return rows, loss


OWN = Objective(pulled_to_start, {"weight": 0.5})
