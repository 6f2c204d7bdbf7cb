"""Labeled samples, and class statistics: a mean and a covariance represent each label.

See FedWaD, section 4 and appendix D.3, eq. 13-14. A sample (x, y) becomes the point [x, m_y, vec(B_y)], where m_y is
the mean of class y. The matrix B_y represents the covariance Sigma_y of this class. Squared Euclidean distances between
points are the OTDD costs: ``||x - x'||^2 + ||m_y - m_y'||^2 + ||B_y - B_y'||_F^2``. In the paper, B_y is Sigma_y. The
public code uses the diagonal of ``(Sigma_y + 1e-6 I)^{1/2}``, so a point has ``3 * d`` entries for d features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy import ndarray

from knot_runner.util.errors import UserError

Covariance = Literal["sigma_frobenius", "sqrt_frobenius"]
CovarianceForm = Literal["full", "diagonal", "root_diagonal"]

#: added to the variances before the square root, as in the public code
RIDGE = 1e-6


@dataclass(frozen=True, eq=False)
class LabeledSamples:
    """One client's samples: finite ``points`` [n, d], float64 or float32, and integer ``labels`` [n].

    Raises:
        UserError: A value is not finite.
    """

    points: ndarray
    labels: ndarray

    def __post_init__(self) -> None:
        bad = (~np.isfinite(self.points).all(1)).sum()
        if bad:
            raise UserError(f"{bad} of {self.size} points have values that are not finite", "samples")

    @property
    def size(self) -> int:
        """Return n, the number of samples."""
        return len(self.points)


@dataclass(frozen=True, eq=False)
class ClassTable:
    """Statistics of the k classes of one client's samples. Classes are renumbered from 0 to k - 1.

    Attributes:
        labels: The original labels [k], ascending.
        vectors: float64, shape [k, L]. Row y holds the mean of class y, then the entries that represent its covariance.
        mass: The fraction of the samples in each class, shape [k].
        of: The class of each sample [n], from 0 to k - 1.
    """

    labels: ndarray
    vectors: ndarray
    mass: ndarray
    of: ndarray


def class_table(samples: LabeledSamples, covariance: Covariance, part: CovarianceForm) -> ClassTable:
    """Return the statistics of all classes in ``samples``, computed in float64.

    The covariance of a class with n samples is normalized by n - 1. If n = 1, the covariance is 0. For d features, a
    covariance has d entries in ``vectors`` if ``part`` selects a diagonal, otherwise d^2.
    """
    labels, of, counts = np.unique(samples.labels, return_inverse=True, return_counts=True)
    vectors = [_class_vector(samples.points[of == k].astype(np.float64), covariance, part) for k in range(len(labels))]
    return ClassTable(labels, np.stack(vectors), counts / len(of), of)


def _class_vector(points: ndarray, covariance: Covariance, part: CovarianceForm) -> ndarray:
    """Return the vector [m, vec(B)] of one class, given the points [n, d] of the class."""
    mean = points.mean(0)
    scatter = (points - mean) / max(len(points) - 1, 1) ** 0.5  # scatter^T scatter = Sigma
    if part == "diagonal":
        spread = np.einsum("ij,ij->j", scatter, scatter)
        if covariance == "sqrt_frobenius":
            spread = np.sqrt(spread + RIDGE)
    elif covariance == "sigma_frobenius":
        spread = scatter.T @ scatter
    else:
        spread = _root(scatter, part)
    return np.concatenate([mean, spread.ravel()])


def _root(scatter: ndarray, part: CovarianceForm) -> ndarray:
    """Return (sigma + RIDGE I)^{1/2}, shape [d, d], or only the diagonal, shape [d].

    With fewer samples than features, the root is ridge^{1/2} I + S^T U diag(c) U^T S. U and l are the eigenvectors and
    eigenvalues of the small matrix S S^T, and c = ((l + ridge)^{1/2} - ridge^{1/2}) / l, written without the division.
    """
    n, d = scatter.shape
    factor = scatter
    base = 0.0
    if n < d:
        factor = scatter.T
        base = RIDGE**0.5
    values, directions = np.linalg.eigh(factor.T @ factor)
    weights = np.sqrt(np.maximum(values, 0) + RIDGE)
    if n < d:
        directions = factor @ directions
        weights = 1 / (weights + base)
    if part == "root_diagonal":
        return directions**2 @ weights + base
    return (directions * weights) @ directions.T + base * np.eye(d)
