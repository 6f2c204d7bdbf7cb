"""The training step and the forward pass over many examples, by autograd: any network, any objective."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from knot_runner.engine.examples import ClientExamples, InputBatch
from knot_runner.engine.objectives import LossRows, SampleLoss

#: Changes the gradients of a step, or reads them, before the optimiser does.
GradientHook = Callable[[], None]


def train_batches(
    model: nn.Module,
    batches: Iterable[InputBatch],
    loss: SampleLoss,
    rows: LossRows,
    optimiser: torch.optim.Optimizer,
    penalty: Callable[[], Tensor | float] | None = None,
    before_step: GradientHook | None = None,
) -> Iterator[tuple[Tensor, int]]:
    """One optimiser step a batch, on the mean of ``loss`` over it plus ``penalty()``; yields the mean (without the
    penalty, on the device) and the size of each. ``rows``: of all examples that the batches' positions count."""
    for positions, inputs in batches:
        logits = model(**inputs)
        value = loss(logits, cut_rows(rows, positions, logits.device)).mean()
        optimiser.zero_grad(set_to_none=True)
        (value if penalty is None else value + penalty()).backward()
        if before_step is not None:
            before_step()
        optimiser.step()
        yield value.detach(), len(positions)


def cut_rows(rows: LossRows, positions: Tensor, device: torch.device) -> LossRows:
    """The ``rows`` of a batch, on ``device``."""
    return {name: tensor[positions.to(tensor.device)].to(device, non_blocking=True) for name, tensor in rows.items()}


@torch.no_grad()
def forward_all(
    model: nn.Module,
    examples: ClientExamples,
    size: int,
    call: Callable[..., Tensor] | None = None,
    report: Callable[[int], None] | None = None,
) -> Tensor:
    """Returns the output of ``call`` (by default the model) for every example, [n, ...], in order, in evaluation mode.

    ``size``: examples a batch; ``report``: receives the number of finished batches.
    """
    model.eval()
    call = model if call is None else call
    places, found = [], []
    for number, (positions, inputs) in enumerate(examples.in_turn(size)):
        places.append(positions)
        found.append(call(**inputs))
        if report is not None:
            report(number + 1)
    outputs = torch.cat(found)
    result = torch.empty_like(outputs)
    result[torch.cat(places).to(outputs.device)] = outputs
    return result
