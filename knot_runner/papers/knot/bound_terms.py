"""The generalization bound of KNOT's Theorem 5.2 in four forms, and bounds from held-out texts.

With probability at least 1 - delta over N independent transfer texts, the expected loss E[L(h)] of the student is at
most ``first + second + third``. L is the unregularized 1-Wasserstein distance between the outputs of student and
teacher, averaged over teachers with weights that sum to 1. L lies in [0, C_M], where C_M is the largest distance
between two labels. R is the Rademacher complexity of the functions that give one label's logit, and K the number of
labels.

=============== ===================== ===================== ====================================================
form            second                third                 source
=============== ===================== ===================== ====================================================
printed         32 K R                2 C_M K sqrt(K log(1/delta) / 2N)   Theorem 5.2 as it is printed
derived         32 K C_M R            2 C_M sqrt(log(1/delta) / 2N)       the paper's lemmas F.1-F.4; Frogner et al.
sharp           C_M K R               C_M sqrt(log(1/delta) / 2N)         ours, for any student: docs/papers/knot.md
sharp_empirical C_M K R^              3 C_M sqrt(log(2/delta) / 2N)       the same, with R^ instead of R
=============== ===================== ===================== ====================================================

R^ is the empirical complexity, computed on the training texts. The second and third terms of a bound come from the same
row of the table. The loss is computed exactly for each text. For the loss of the best constant prediction, a lower
bound is computed.

The Rademacher complexity requires that the class of logit functions is declared; without a declared class, the
complexity is infinite. The class ``last_layer`` assumes that the encoder was fixed before the texts were seen. The
class contains all last layers whose weight vectors have at most the norm of the student's longest weight vector. The
class gives no guarantee for KNOT: KNOT trains the encoder on the same texts, so the norm depends on the texts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from knot_runner.config.settings.networks import CustomSettings
from knot_runner.models.network import Network
from knot_runner.transport import ground_cost
from knot_runner.transport.loss import exact_transport
from knot_runner.util.errors import UserError

Form = Literal["printed", "derived", "sharp", "sharp_empirical"]
BOUND_FORMS: tuple[Form, ...] = get_args(Form)
#: Probability that a bound fails.
DELTA = 0.05


@dataclass(frozen=True)
class BoundTerms:
    """The sum ``first + second + third``, in units of the label coordinates. A term that a bound lacks is 0."""

    first: float
    second: float
    third: float

    @property
    def total(self) -> float:
        """Return the bound."""
        return self.first + self.second + self.third


def label_diameter(points: Tensor) -> float:
    """Return C_M, the largest Euclidean distance between two of K label ``points``, of shape [K, d] (section 5.3)."""
    return float(ground_cost(points.double()).max())


def lipschitz_constant(diameter: float) -> float:
    """Return the Lipschitz constant of the loss as a function of the logits (l2 norm): C_M / (2 sqrt 2).

    W1(p, q) - W1(p', q) <= W1(p, p') <= C_M / 2 ||p - p'||_1, and softmax is 1 / sqrt 2-Lipschitz from l2 to l1.
    """
    return diameter / (2 * math.sqrt(2))


def second_term(form: Form, classes: int, diameter: float, complexity: float) -> float:
    """Return the complexity term of the bound.

    ``complexity``: the Rademacher complexity R_N, or the empirical R^_N of the sample, of the logit functions of one
        label.

    ``printed`` lacks the factor C_M of the paper's eq. 23 (``derived``). ``sharp`` is twice the complexity of the loss.
    By Maurer (2016), this complexity is at most sqrt 2 times the loss's Lipschitz constant times the sum of the
    complexities of all logits.
    """
    if form == "printed":
        return 32 * classes * complexity
    if form == "derived":
        return 32 * diameter * classes * complexity
    return 2 * math.sqrt(2) * lipschitz_constant(diameter) * classes * complexity


def third_term(form: Form, classes: int, diameter: float, texts: int) -> float:
    """Return the deviation term for ``texts`` independent texts.

    ``printed``: the equation in Theorem 5.2. ``derived``: Theorem F.4, without the factor K^1.5. ``sharp``: McDiarmid's
    inequality, applied once. ``sharp_empirical``: the same inequality applied twice, because the complexity is computed
    from the sample (Mohri et al., Theorem 3.3).
    """
    if form == "sharp_empirical":
        return 3 * diameter * math.sqrt(math.log(2 / DELTA) / (2 * texts))
    once = math.sqrt(math.log(1 / DELTA) / (2 * texts))
    factors = {"printed": 2 * diameter * math.pow(classes, 1.5), "derived": 2 * diameter, "sharp": diameter}
    return factors[form] * once


def hoeffding(losses: np.ndarray, diameter: float, checkpoints: int) -> BoundTerms:
    """Return Hoeffding's bound, mean + C_M sqrt(log(M / delta) / 2N), from N held-out ``losses`` between 0 and C_M.

    The union bound over M ``checkpoints`` accounts for selecting the best checkpoint on these losses. The bound needs
    no Rademacher complexity.
    """
    third = diameter * math.sqrt(math.log(checkpoints / DELTA) / (2 * len(losses)))
    return BoundTerms(float(losses.mean()), 0.0, third)


def bernstein(losses: np.ndarray, diameter: float, checkpoints: int) -> BoundTerms:
    """Return the empirical Bernstein bound: like :func:`hoeffding`, but with the variance V of the losses.

    The bound is mean + sqrt(2 V log(2M / delta) / N) + 7 C_M log(2M / delta) / (3 (N - 1)), for N >= 2 ``losses``
    (Maurer & Pontil 2009, Theorem 4).
    """
    count = len(losses)
    log = math.log(2 * checkpoints / DELTA)
    second = math.sqrt(2 * float(losses.var(ddof=1)) * log / count)
    return BoundTerms(float(losses.mean()), second, 7 * diameter * log / (3 * (count - 1)))


def vacuous(total: float, diameter: float, constant: float) -> list[str]:
    """Return the reasons why a bound of ``total`` is vacuous; [] if it is informative.

    The reasons are "C_M" if ``total`` is at least ``diameter``, the largest possible loss, and "constant" if ``total``
    is at least the argument ``constant``, the loss of the best constant prediction.
    """
    limits = {"C_M": diameter, "constant": constant}
    return [name for name, limit in limits.items() if total >= limit]


def normalized_weights(weights: Tensor) -> Tensor:
    """Return the teacher ``weights`` of shape [N, K], divided by the sum over the K teachers of each text.

    Raises:
        UserError: All weights of a text are 0.
    """
    total = weights.double().sum(1, keepdim=True)
    none = int((total <= 0).sum())
    if none:
        raise UserError(
            f"all teachers have weight 0 on {none} of {len(total)} texts, so the weights cannot be normalized", "bound"
        )
    return weights.double() / total


#: Relative tolerance of the best constant prediction's loss, and the maximum number of cutting planes.
CONSTANT_TOLERANCE = 1e-4
MOST_CUTS = 200


def transport_losses(p: Tensor, q: Tensor, weights: Tensor, points: Tensor) -> Tensor:
    """Return the weighted, unregularized transport loss sum_k W_k W1(p, q_k) of each of N texts.

    The student's predictions ``p`` have shape [N, C], the teachers' ``q`` [N, K, C]. ``weights`` W [N, K] sum to 1 per
    text.
    """
    return _teacher_costs(p, q, points)[0].mul(weights).sum(1)


def constant_best(q: Tensor, weights: Tensor, points: Tensor) -> tuple[Tensor, float]:
    """Return the best constant prediction (a distribution over C labels), and a lower bound on its mean loss.

    The mean loss over all texts is convex in the prediction. A subgradient of the mean loss at a prediction gives a
    cutting plane, which is an affine lower bound (Kelley 1960). Planes are added until the difference between the best
    loss found and the lower bound is at most ``CONSTANT_TOLERANCE`` times this loss.
    """
    from scipy.optimize import linprog

    classes = q.shape[2]
    best = guess = torch.full((classes,), 1 / classes, dtype=torch.float64)
    least = np.inf
    low = 0.0
    cuts, offsets = [], []  # slope . c - t <= - offset
    for _ in range(MOST_CUTS):
        costs, potentials = _teacher_costs(guess.expand(len(q), classes), q, points)
        value = float((costs * weights).sum(1).mean())
        slope = (potentials * weights[..., None]).sum(1).mean(0)
        if value < least:
            best = guess
            least = value
        cuts.append(np.append(slope.numpy(), -1.0))
        offsets.append(float(slope @ guess) - value)
        answer = linprog(
            np.append(np.zeros(classes), 1.0), A_ub=np.array(cuts), b_ub=np.array(offsets),
            A_eq=np.append(np.ones(classes), 0.0)[None], b_eq=[1.0], bounds=[(0, 1)] * classes + [(0, None)],
        )  # fmt: skip
        low = answer.fun
        guess = torch.from_numpy(answer.x[:-1]).clamp_min(0)
        guess = guess / guess.sum()
        if least - low <= CONSTANT_TOLERANCE * least:
            break
    return best, low


def _teacher_costs(p: Tensor, q: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return W1 between the prediction ``p`` [N, C] and each teacher's prediction ``q`` [N, K, C], for each of N texts.

    The results are the costs, shape [N, K], and the dual potentials, shape [N, K, C].
    """
    pairs = p[:, None].expand(q.shape).reshape(-1, q.shape[2])
    costs, potentials = exact_transport(pairs, q.reshape(pairs.shape), points)
    return costs.reshape(q.shape[:2]), potentials.reshape(q.shape)


# --------------------------------------------------------------------------------------------------------- complexity

#: Number of draws of random signs.
SIGN_DRAWS = 200


def last_layer_complexity(features: Tensor, head: Tensor, draws: torch.Generator) -> dict[str, float]:
    """Return the empirical complexity R^ of the functions {x -> <w, phi(x)>: ||w||_2 <= B}.

    ``features`` are phi(x) of N texts, of shape [N, d], and ``head`` [C, d] is the last layer, which determines B.

    R^ = B / N E||sum_i s_i phi_i||_2 is estimated from ``SIGN_DRAWS`` draws of the random signs s. By Jensen's
    inequality, R^ is at most B / N sqrt(sum ||phi_i||^2).

    Returns:
        ``value``: estimate of R^; ``error``: its Monte Carlo standard error; ``upper``: upper bound of R^;
            ``norm``: B, the L2 norm of the last layer's longest row, including the bias.
    """
    count = len(features)
    norm = float(head.norm(dim=1).max())
    lengths = torch.empty(SIGN_DRAWS, dtype=torch.float64)
    for i in range(SIGN_DRAWS):
        signs = torch.randint(0, 2, (count,), generator=draws).double() * 2 - 1
        lengths[i] = (signs @ features).norm()
    scale = norm / count
    return {
        "value": scale * float(lengths.mean()),
        "error": scale * float(lengths.std()) / math.sqrt(SIGN_DRAWS),
        "upper": scale * float(features.norm()),
        "norm": norm,
    }


def undeclared(network: Network) -> str:
    """Return why the complexity is undefined for a student with this ``network``; "" if the complexity is defined."""
    spec = network.spec
    if isinstance(spec, CustomSettings):
        return f"the function class of model {spec.name} is unknown, so its complexity is infinite"
    if getattr(spec, "output", None) == "softmax":
        return f"model {spec.name} ends in a softmax, so its output is not a linear function of its last features"
    return ""
