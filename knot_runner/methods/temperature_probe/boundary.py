"""How far one training step moves an image's distance to the decision boundary (FLex&Chill 3.1.2, Fig. 2)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from knot_runner.config.settings import ProbeSettings
from knot_runner.methods.temperature_probe.probed import Probed, ProbeProgress

#: Images in a batch; each has weights of its own (2 million, 8 MB, with McMahan's CNN).
_ROWS = 16
#: The first interval searched is [0, attack_limit / 2**DOUBLINGS]; then its upper end doubles.
DOUBLINGS = 12


@torch.no_grad()
def boundary_arrays(hp: ProbeSettings, probed: Probed, rows: Tensor, watch: ProbeProgress) -> dict[str, Tensor]:
    """``boundary.before`` [M], ``boundary.after`` [K, M], ``boundary.right`` [K, M] and ``boundary.tried`` [1], for the
    M of ``rows`` that the model has wrong; see :func:`~knot_runner.methods.temperature_probe.probe_arrays`.
    On the CPU."""
    wrong = torch.cat([(probed.model(images).argmax(1) != labels).cpu() for images, labels in probed.batches(rows)])
    chosen, done = rows[wrong], 0
    before, after = torch.empty(len(chosen)), torch.empty(len(hp.temperatures), len(chosen))
    right = torch.empty(after.shape, dtype=torch.uint8)
    for images, labels in probed.batches(chosen, _ROWS) if len(chosen) else ():
        watch("boundary distances", done, len(chosen), "")
        here = slice(done, done + len(labels))
        before[here] = boundary_distances(probed.model, images, labels, hp).cpu()
        for i, temperature in enumerate(hp.temperatures):
            forward = _each_its_own(probed.model, stepped(probed.model, images, labels, temperature, hp.step_lr))
            after[i, here] = boundary_distances(forward, images, labels, hp).cpu()
            right[i, here] = (forward(images).argmax(1) == labels).to(torch.uint8).cpu()
        done += len(labels)
    watch("boundary distances", done, done, "done")
    found = {"before": before, "after": after, "right": right, "tried": torch.tensor([len(rows)])}
    return {f"boundary.{name}": array for name, array in found.items()}


def boundary_distances(
    forward: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, hp: ProbeSettings
) -> Tensor:
    """[n]: the epsilon at which ``forward(images + epsilon * sign(gradient))`` first has another argmax (FGSM).

    For an image that is wrong already, a change of decision is a change to any other class. The upper end of the
    interval doubles until the decision changes, then bisection; a change and its reversal within one interval
    [e, 2e] is not seen. Pixels are not clipped to their range. inf: no change up to ``attack_limit``.
    """
    with torch.enable_grad():
        moved = images.detach().requires_grad_()
        logits = forward(moved)
        decision = logits.detach().argmax(1)
        target = labels if hp.attack_label == "truth" else decision
        direction = torch.autograd.grad(_excess(logits / hp.attack_temperature, target).sum(), moved)[0].sign()

    def changes(size: Tensor) -> Tensor:
        return forward(images + size[:, None, None, None] * direction).argmax(1) != decision

    low, high = _first_interval(changes, images.new_zeros(len(images)), hp.attack_limit)
    for _ in range(hp.attack_steps):
        middle = torch.where(high.isinf(), low, (low + high) / 2)
        crossed = changes(middle) & high.isfinite()
        low, high = torch.where(crossed, low, middle), torch.where(crossed, middle, high)
    return high


def _excess(logits: Tensor, target: Tensor) -> Tensor:
    """[n]: log(exp(CE) - 1), which ascends with CE(z, target), so its gradient has the same sign; but it does not
    vanish where the probability of the target rounds to 1, as it does after a step at a low temperature."""
    of_target = target[:, None]
    return logits.scatter(1, of_target, -torch.inf).logsumexp(1) - logits.gather(1, of_target)[:, 0]


def _first_interval(changes: Callable[[Tensor], Tensor], low: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """(low, high) [n], where the decision at ``high`` is another than at ``low``; high = inf where none is."""
    high = torch.full_like(low, torch.inf)
    for doubling in range(DOUBLINGS + 1):
        size = torch.full_like(low, limit * 2.0 ** (doubling - DOUBLINGS))
        pending = high.isinf()
        crossed = changes(size) & pending
        low, high = torch.where(pending & ~crossed, size, low), torch.where(crossed, size, high)
        if high.isfinite().all():
            break
    return low, high


def stepped(model: nn.Module, images: Tensor, labels: Tensor, temperature: float, lr: float) -> dict[str, Tensor]:
    """Each parameter [n, ...] after one step of SGD on CE(z / T, y) of each image alone, all from the same start.

    In evaluation mode: a batch of one image has no statistics of its own for BatchNorm.
    """
    weights = dict(model.named_parameters())

    def loss(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, weights, (image[None],)) / temperature, label[None])

    slopes = vmap(grad(loss), in_dims=(None, 0, 0))(weights, images, labels)
    return {name: weights[name] - lr * slope for name, slope in slopes.items()}


def _each_its_own(model: nn.Module, weights: dict[str, Tensor]) -> Callable[[Tensor], Tensor]:
    """Images [n, C, H, W] -> logits [n, classes], image i under weights i."""
    single = vmap(lambda own, image: functional_call(model, own, (image[None],))[0])
    return lambda images: single(weights, images)
