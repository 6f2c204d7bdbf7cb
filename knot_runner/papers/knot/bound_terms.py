"""The generalization bound of KNOT's Theorem 5.2 in four forms, and bounds from held-out texts.

With probability at least 1 - delta over N independent transfer texts, the expected loss of the student is at most
``first + second + third``. The loss L is the unregularized 1-Wasserstein distance between the outputs of student and
teacher, averaged over teachers with weights that sum to 1. L lies in [0, C_M], where C_M is the largest distance
between two labels.

The first term is the student's mean loss: the held-out loss for the form ``derived``, and the training loss for the
other forms. The second and third terms contain K, the number of labels, and R, the Rademacher complexity of the
functions that give one label's logit:

=============== ========== ===================================== ============================================
form            second     third                                 source
=============== ========== ===================================== ============================================
printed         32 K R     2 C_M K sqrt(K log(1/delta) / (2 N))  Theorem 5.2 as it is printed
derived         32 K C_M R 2 C_M sqrt(log(1/delta) / (2 N))      the paper's lemmas F.1-F.4; Frogner et al.
sharp           C_M K R    C_M sqrt(log(1/delta) / (2 N))        ours, for any student: docs/papers/knot.md
sharp_empirical C_M K R^   3 C_M sqrt(log(2/delta) / (2 N))      the same, with R^ instead of R
=============== ========== ===================================== ============================================

R^ is the empirical complexity, computed on the training texts. Losses are computed exactly. A bound is vacuous if it is
at least C_M, or at least the loss of the best constant prediction (:func:`constant_best`).

The Rademacher complexity depends on the class of logit functions. It is infinite if the class is unknown. The class
``last_layer`` contains all last layers whose weight vectors are at most as long as the student's longest weight vector.
It assumes that the encoder was fixed before the texts were seen. KNOT trains the encoder on the same texts, so this
class gives no guarantee for KNOT.
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
    """The three terms of a bound, in units of the label coordinates. A missing term is 0."""

    first: float
    second: float
    third: float

    @property
    def total(self) -> float:
        """Return the bound, the sum of the three terms."""
        return self.first + self.second + self.third


def label_diameter(points: Tensor) -> float:
    """Return C_M, the largest Euclidean distance between two labels (section 5.3).

    ``points`` [K, d]: the coordinates of K labels.
    """
    return float(ground_cost(points.double()).max())


def lipschitz_constant(diameter: float) -> float:
    """Return C_M / (2 sqrt(2)), the Lipschitz constant of the loss as a function of the logits (l2 norm).

    ``diameter`` is C_M. The result is the product of two Lipschitz constants:

    - C_M / 2 for W1, since ``W1(p, q) - W1(p', q) <= W1(p, p') <= C_M / 2 * ||p - p'||_1``
    - 1 / sqrt(2) for the softmax, from the l2 norm to the l1 norm
    """
    return diameter / (2 * math.sqrt(2))


def second_term(form: Form, classes: int, diameter: float, complexity: float) -> float:
    """Return the second term of a bound. The term grows with the complexity of the logit functions.

    The form ``printed`` is the term in the paper's Theorem 5.2, where the factor C_M is missing. The form ``derived``
    has this factor, as in the paper's eq. 23. For ``sharp`` and ``sharp_empirical``, the term is twice an upper bound
    on the complexity of the loss. By Maurer (2016), this upper bound is sqrt(2) times the loss's Lipschitz constant
    times the sum of the complexities of all logits.

    Args:
        form: The form of the bound.
        classes: The number of labels K.
        diameter: The largest distance between two labels, C_M.
        complexity: The Rademacher complexity R of the functions that give one label's logit. For ``sharp_empirical``,
            the empirical complexity R^ on the training texts.
    """
    if form == "printed":
        return 32 * classes * complexity
    if form == "derived":
        return 32 * diameter * classes * complexity
    return 2 * math.sqrt(2) * lipschitz_constant(diameter) * classes * complexity


def third_term(form: Form, classes: int, diameter: float, texts: int) -> float:
    """Return the third term of a bound. The term shrinks as the number of independent ``texts`` grows.

    - ``printed``: the term in Theorem 5.2
    - ``derived``: the term of Theorem F.4. It equals the term of ``printed`` divided by K^1.5.
    - ``sharp``: McDiarmid's inequality, applied once
    - ``sharp_empirical``: McDiarmid's inequality, applied twice (Mohri et al., Theorem 3.3)
    """
    # The inequality is applied twice, because the complexity is also computed from the sample.
    if form == "sharp_empirical":
        return 3 * diameter * math.sqrt(math.log(2 / DELTA) / (2 * texts))
    once = math.sqrt(math.log(1 / DELTA) / (2 * texts))
    factors = {"printed": 2 * diameter * math.pow(classes, 1.5), "derived": 2 * diameter, "sharp": diameter}
    return factors[form] * once


def hoeffding(losses: np.ndarray, diameter: float, checkpoints: int) -> BoundTerms:
    """Return Hoeffding's bound from N held-out ``losses`` between 0 and ``diameter``.

    The bound is ``mean + C_M * sqrt(log(M / delta) / (2 N))``, where C_M is ``diameter`` and M is ``checkpoints``. The
    factor M is due to a union bound over the M checkpoints, since the best checkpoint was selected on held-out texts.
    """
    third = diameter * math.sqrt(math.log(checkpoints / DELTA) / (2 * len(losses)))
    return BoundTerms(float(losses.mean()), 0.0, third)


def bernstein(losses: np.ndarray, diameter: float, checkpoints: int) -> BoundTerms:
    """Return the empirical Bernstein bound from N >= 2 held-out ``losses`` with variance V.

    The bound is ``mean + sqrt(2 V log(2 M / delta) / N) + 7 C_M log(2 M / delta) / (3 (N - 1))`` (Maurer & Pontil 2009,
    Theorem 4). C_M is ``diameter``, and M is ``checkpoints``.
    """
    count = len(losses)
    log = math.log(2 * checkpoints / DELTA)
    second = math.sqrt(2 * float(losses.var(ddof=1)) * log / count)
    return BoundTerms(float(losses.mean()), second, 7 * diameter * log / (3 * (count - 1)))


def vacuous(total: float, diameter: float, constant: float) -> list[str]:
    """Return the reasons why a bound with the value ``total`` is vacuous; [] if the bound is informative.

    - "C_M": ``total`` is at least ``diameter``, the largest possible loss
    - "constant": ``total`` is at least ``constant``, the loss of the best constant prediction
    """
    limits = {"C_M": diameter, "constant": constant}
    return [name for name, limit in limits.items() if total >= limit]


def normalized_weights(weights: Tensor) -> Tensor:
    """Return the teacher ``weights`` [N, K], scaled so that the K weights of each text sum to 1.

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
    """Return the exact transport loss ``sum_k W_k W1(p, q_k)`` of each of N texts, shape [N].

    Args:
        p: The student's predictions, shape [N, C].
        q: The predictions of K teachers, shape [N, K, C].
        weights: The weights W, shape [N, K]. They sum to 1 for each text.
        points: The coordinates of the C labels.
    """
    return _teacher_costs(p, q, points)[0].mul(weights).sum(1)


def constant_best(q: Tensor, weights: Tensor, points: Tensor) -> tuple[Tensor, float]:
    """Return the best constant prediction, and a lower bound on the loss of every constant prediction.

    A constant prediction is one distribution over C labels for all texts, shape [C]. Its loss is the transport loss,
    averaged over the texts. The search uses cutting planes (Kelley 1960). It ends after ``MOST_CUTS`` planes, or
    earlier if the lowest loss found and the lower bound differ by at most ``CONSTANT_TOLERANCE`` (relative).
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
        # The mean loss is convex in the prediction. Its subgradient at ``guess`` therefore gives an affine lower bound.
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
    """Return the empirical Rademacher complexity R^ of the functions {x -> <w, phi(x)>: ||w||_2 <= B}.

    ``features`` [N, d] are phi(x) for N texts. ``head`` [C, d] is the last layer, and B is the largest L2 norm of its
    rows. One of the d columns is for the bias.

    ``R^ = (B / N) * E ||sum_i s_i phi_i||_2`` is estimated from ``SIGN_DRAWS`` draws of the random signs s. By Jensen's
    inequality, R^ is at most ``(B / N) * sqrt(sum_i ||phi_i||^2)``.

    Returns:
        A dict. ``value`` is the estimate of R^, and ``error`` is its Monte Carlo standard error. ``upper`` is the upper
        bound on R^, and ``norm`` is B.
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
    """Return the reason why ``bound.json`` declares no last-layer complexity of ``network``; "" if it declares one.

    The file lists this reason under ``undeclared``.
    """
    spec = network.spec
    if isinstance(spec, CustomSettings):
        return f"the function class of model {spec.name} is unknown, so its complexity is infinite"
    if getattr(spec, "output", None) == "softmax":
        return f"model {spec.name} ends in a softmax, so its output is not a linear function of its last features"
    return ""
