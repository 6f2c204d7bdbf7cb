"""Processor time and accuracy of the transport solvers: value and gradient of a batch of problems, one thread.

Random Dirichlet(.5) pairs in float32 on labels 0..n-1 (1-D) or uniform in [0, 4]^d. Errors are against the Newton
solver at tolerance 1e-12, which is itself compared with log-domain Sinkhorn iterations on some rows ("check": how many
rows Sinkhorn brought to a marginal error of 1e-9, and on how many of those the two gradients agree to 1e-6). "ratio"
is newton's time over that of geomloss .9; "off" is the share of rows whose centered gradient is wrong by more than .01.
The last table has the batches that KNOT trains, texts by teachers, at its epsilon: labels 0..n-1, and the emotions of
task=erc in their plane.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from process_tree import spread
from torch import Tensor
from torch.distributions import Dirichlet

from knot_runner.transport import Solver, ground_cost, semi_dual, transport_loss

SOLVERS = {
    "geomloss .5": ("geomloss", 0.5),
    "geomloss .9": ("geomloss", 0.9),
    "newton": ("newton", 0.5),
}
CHECKED_ROWS, SINKHORN_ITERATIONS = 32, 4000
#: (texts, teachers) of a training batch, and the epsilon of the published code
TRAINED, TRAINED_EPSILON = [(16, 3), (64, 4), (128, 5), (1024, 4), (1024, 5)], 0.001
#: where the labels of a training batch lie
LABELS = {
    "3 on a line": torch.arange(3.0)[:, None],
    "5 on a line": torch.arange(5.0)[:, None],
    "5 emotions": torch.tensor([[-0.4, 0.8], [0.9, 0.2], [0.0, 0.0], [-0.9, -0.4], [0.4, 0.9]]),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--problems", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--labels", type=int, default=5)
    parser.add_argument("--tolerance", type=float, default=1e-6)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1, 0.1, 0.01, 0.001])


def main(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    p, q = Dirichlet(torch.full((options.labels,), 0.5)).sample((2, options.problems))
    names = list(SOLVERS)
    print(f"{options.problems} problems, {options.labels} labels, median of {options.repeats}; columns: {names}")
    print(" d    eps |           ms             ratio |     median value error     |         off          | check")
    for d in (1, 2, 3):
        points = torch.arange(float(options.labels))[:, None] if d == 1 else 4 * torch.rand(options.labels, d)
        for epsilon in options.epsilons:
            print(f"{d:>2} {epsilon:>6g} | {_row(p, q, points, epsilon, options)}", flush=True)
    print(f"batches as trained, eps {TRAINED_EPSILON:g}, ms: median (least-most) of {3 * options.repeats}; {names}")
    for name, points in LABELS.items():
        for texts, teachers in TRAINED:
            print(f"{name:<12} {texts:>5} x {teachers} | {_batch(texts, teachers, points, options)}", flush=True)


def _batch(texts: int, teachers: int, points: Tensor, options: argparse.Namespace) -> str:
    """Milliseconds of each solver for one batch; the solvers take turns."""
    masses = Dirichlet(torch.full((len(points),), 0.5))
    p = masses.sample((texts, 1))
    q = masses.sample((texts, teachers))
    times = dict[str, list[float]]()
    for _ in range(3 * options.repeats + 1):
        for name, (solver, scaling) in SOLVERS.items():
            seconds, _, _ = _run(p, q, points, Solver(solver, TRAINED_EPSILON, options.tolerance, scaling))
            times.setdefault(name, []).append(1e3 * seconds)
    timed = [each[1:] for each in times.values()]  # the first warms up
    return " | ".join(spread(each, ".1f") for each in timed)


def _row(p: Tensor, q: Tensor, points: Tensor, epsilon: float, options: argparse.Namespace) -> str:
    truth = semi_dual(p, q, ground_cost(points.double()), epsilon, 1e-12)
    solvers = [Solver(name, epsilon, options.tolerance, scaling) for name, scaling in SOLVERS.values()]
    runs = [[_run(p, q, points, solver) for solver in solvers] for _ in range(options.repeats + 1)][1:]
    times = [statistics.median(seconds) for seconds in zip(*([r[0] for r in run] for run in runs), strict=True)]
    values = [(value.double() - truth.value).abs().median() for _, value, _ in runs[-1]]
    off = [((grad.double() - truth.f).abs().amax(1) > 0.01).double().mean() for _, _, grad in runs[-1]]
    cells = [
        " ".join(f"{1e3 * t:7.1f}" for t in times) + f" {times[2] / times[1]:6.2f}",
        " ".join(f"{v:8.1e}" for v in values),
        " ".join(f"{share:6.4f}" for share in off),
        _check(p, q, points, epsilon, truth.f),
    ]
    return " | ".join(cells)


def _run(p: Tensor, q: Tensor, points: Tensor, solver: Solver) -> tuple[float, Tensor, Tensor]:
    p = p.clone().requires_grad_()
    start = time.process_time()
    value = transport_loss(p, q, points, solver)
    value.sum().backward()
    return time.process_time() - start, value.detach(), p.grad


def _check(p: Tensor, q: Tensor, points: Tensor, epsilon: float, potential: Tensor) -> str:
    p, q = (rows[:CHECKED_ROWS].double() / rows[:CHECKED_ROWS].double().sum(1, keepdim=True) for rows in (p, q))
    cost = ground_cost(points.double())
    log_p = p.log()
    log_q = q.log()
    g = torch.zeros_like(q)
    for i in range(SINKHORN_ITERATIONS):
        eps = max(epsilon, 4 * 0.98**i)
        f = -eps * torch.logsumexp((g[:, None] - cost) / eps + log_q[:, None], 2)
        g = -eps * torch.logsumexp((f[:, :, None] - cost) / eps + log_p[:, :, None], 1)
    first = p * ((log_q[:, None] + (f[:, :, None] + g[:, None] - cost) / epsilon).exp().sum(2))
    converged = (first - p).abs().sum(1) < 1e-9
    f -= f.mean(1, keepdim=True)
    agree = (f - potential[:CHECKED_ROWS]).abs().amax(1) < 1e-6
    return f"{int(converged.sum())} of {len(p)}, {int((converged & agree).sum())} agree"
