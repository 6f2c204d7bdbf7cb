"""The generalisation bound of KNOT's Theorem 5.2: its terms as printed, as derived, sharper, and on held-out texts.

With probability at least 1 - delta over N independent transfer texts, the expected loss E[L(h)] of the student is at
most ``first + second + third``. L is the mean over teachers, with weights that sum to 1, of the unregularised
1-Wasserstein distance of the student's output to the teacher's, so it lies in [0, C_M] for C_M the largest distance of
two labels; R is the Rademacher complexity of the functions that give one label's logit; K labels.

=============== ===================== ===================== ====================================================
form            second                third                 source
=============== ===================== ===================== ====================================================
printed         32 K R                2 C_M K sqrt(K log(1/delta) / 2N)   Theorem 5.2 as it is printed
derived         32 K C_M R            2 C_M sqrt(log(1/delta) / 2N)       the paper's lemmas F.1-F.4; Frogner et al.
sharp           C_M K R               C_M sqrt(log(1/delta) / 2N)         ours, for any student: knot.md 4
sharp_empirical C_M K R^              3 C_M sqrt(log(2/delta) / 2N)       the same, with R^ of these very texts
=============== ===================== ===================== ====================================================

Terms of two forms are never added up together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from knot_runner.transport import ground_cost
from knot_runner.util.errors import UserError

Form = Literal["printed", "derived", "sharp", "sharp_empirical"]
BOUND_FORMS: tuple[Form, ...] = ("printed", "derived", "sharp", "sharp_empirical")
#: The probability with which a bound may fail.
DELTA = 0.05
#: Weights of a text's teachers sum to 1 within this.
SUM_TOLERANCE = 1e-6


@dataclass(frozen=True)
class BoundTerms:
    """``first + second + third``, in units of the labels' coordinates; a term that a bound does not have is 0."""

    first: float
    second: float
    third: float

    @property
    def total(self) -> float:
        """The bound."""
        return self.first + self.second + self.third


def label_diameter(points: Tensor) -> float:
    """C_M: the largest Euclidean distance of two label points [K, d] (printed, section 5.3)."""
    return float(ground_cost(points.double()).max())


def lipschitz_constant(diameter: float) -> float:
    """Of the loss in the logits, l2 to absolute value: C_M / (2 sqrt 2) (derived in knot.md 4).

    W1(p, q) - W1(p', q) <= W1(p, p') <= C_M / 2 ||p - p'||_1, and softmax is 1 / sqrt 2-Lipschitz from l2 to l1.
    """
    return diameter / (2 * math.sqrt(2))


def second_term(form: Form, classes: int, diameter: float, complexity: float) -> float:
    """Returns the complexity term of the bound; ``complexity``: R_N, or R^_N of the sample, of one label's logit
    functions.

    ``printed`` lacks the factor C_M that eq. 23 of the paper has (``derived``). ``sharp``: twice the complexity of the
    loss, which is at most sqrt 2 times its Lipschitz constant times that of all logits (Maurer 2016).
    """
    if form == "printed":
        return 32 * classes * complexity
    if form == "derived":
        return 32 * diameter * classes * complexity
    return 2 * math.sqrt(2) * lipschitz_constant(diameter) * classes * complexity


def third_term(form: Form, classes: int, diameter: float, texts: int, delta: float = DELTA) -> float:
    """Returns the deviation term for ``texts`` independent texts; ``delta``: the probability that the bound fails.

    ``printed``: eq. of Theorem 5.2; ``derived``: Theorem F.4, whose K^1.5 is gone; ``sharp``: McDiarmid's inequality,
    once; ``sharp_empirical``: twice, as the complexity is that of the sample (Mohri et al., Theorem 3.3).
    """
    once = math.sqrt(math.log(1 / delta) / (2 * texts))
    if form == "printed":
        return 2 * diameter * classes**1.5 * once
    if form == "derived":
        return 2 * diameter * once
    if form == "sharp":
        return diameter * once
    return 3 * diameter * math.sqrt(math.log(2 / delta) / (2 * texts))


def hoeffding(losses: np.ndarray, diameter: float, checkpoints: int, delta: float = DELTA) -> BoundTerms:
    """On held-out ``losses`` [N] in [0, C_M], among which the best of ``checkpoints`` was chosen (a union bound over
    them): mean + C_M sqrt(log(M / delta) / 2N). Needs no complexity."""
    third = diameter * math.sqrt(math.log(checkpoints / delta) / (2 * len(losses)))
    return BoundTerms(float(losses.mean()), 0.0, third)


def bernstein(losses: np.ndarray, diameter: float, checkpoints: int, delta: float = DELTA) -> BoundTerms:
    """As :func:`hoeffding`, with the variance V of at least two ``losses`` (Maurer & Pontil 2009, Theorem 4):
    mean + sqrt(2 V log(2M / delta) / N) + 7 C_M log(2M / delta) / (3 (N - 1))."""
    count, log = len(losses), math.log(2 * checkpoints / delta)
    second = math.sqrt(2 * float(losses.var(ddof=1)) * log / count)
    return BoundTerms(float(losses.mean()), second, 7 * diameter * log / (3 * (count - 1)))


def vacuous(total: float, diameter: float, constant: float) -> list[str]:
    """Returns why a bound of ``total`` is vacuous: ``C_M`` where no loss can be larger, ``constant`` where the loss of
    the best constant prediction (``constant``) is no larger; [] where it is informative."""
    reasons = ["C_M"] if total >= diameter else []
    return reasons + (["constant"] if total >= constant else [])


def normalised_weights(weights: Tensor) -> Tensor:
    """``weights`` [N, K] of each text's teachers over their sum, so that the loss is in [0, C_M].

    Raises :class:`UserError` where a text's weights are all 0.
    """
    total = weights.double().sum(1, keepdim=True)
    if not bool((total > 0).all()):
        none = int((total <= 0).sum())
        raise UserError(f"bound: {none} texts give all teachers weight 0, which cannot be normalised")
    return weights.double() / total


def require_normalised(weights: Tensor) -> None:
    """Raises :class:`UserError` for ``weights`` [N, K] that do not sum to 1 for each text: the loss may exceed C_M."""
    off = float((weights.double().sum(1) - 1).abs().max())
    if off > SUM_TOLERANCE:
        most = float(weights.sum(1).max())
        raise UserError(
            f"bound: weights sum to up to {most:.3g} for a text, so the loss is not in [0, C_M]; divided by their sum "
            "(method.normalise=true) they fit"
        )
