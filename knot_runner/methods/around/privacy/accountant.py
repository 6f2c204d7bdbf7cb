"""Epsilon of a private run, computed by the Renyi accountant of dp-accounting (Google), an optional dependency.

In each round, the sum of clipped updates plus noise is a Gaussian mechanism on a sample of the clients. C is the
clipping bound, and z the noise multiplier. The sampling determines which data sets are neighbors:

- ``poisson``: One of two neighboring data sets has one client more than the other. The sums of clipped updates differ
  by at most C (Mironov et al. 2019).
- ``fixed``: A fixed number of clients is drawn without replacement. Neighboring data sets differ in one client's data.
  The sums differ by at most 2 C, so the accountant uses z / 2 instead of z (Wang et al. 2019, Theorem 27).

For large samples with little noise, the privacy bound for ``fixed`` exceeds the bound without sampling. Both bounds
hold, so the smaller bound is used at each Renyi order.

A client may send m messages in a round, each with its own clipping bound and noise. They are equivalent to one message
with the noise multiplier z / sqrt(m).
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from types import ModuleType
from typing import Any

import numpy as np

from knot_runner.methods.around.privacy import UserPrivacy
from knot_runner.util.errors import UserError

#: A noise multiplier that is computed from a target epsilon is rounded up to a multiple of 1 / PARTS.
PARTS = 10_000
#: Initial bracket of the search for the noise multiplier.
BRACKET = 0.05, 1.0


def accountant_name() -> str:
    """Return the name of the accountant, such as ``dp-accounting 0.6.0 (RDP)``.

    Raises:
        UserError: The accountant is not installed.
    """
    _library()
    return f"dp-accounting {metadata.version('dp-accounting')} (RDP)"


def neighbors(privacy: UserPrivacy) -> str:
    """Return how two neighboring data sets differ.

    - ``add or remove``: one data set contains one client more than the other
    - ``replace``: both data sets contain the same clients, but the data of one client differ
    """
    if _without_replacement(privacy):
        return "replace"
    return "add or remove"


@functools.cache
def epsilon_after(privacy: UserPrivacy) -> Callable[[int], float | None]:
    """Return a function that maps a number of rounds to epsilon.

    The function returns None if epsilon is infinite, for example without noise. After ``privacy.rounds`` rounds,
    epsilon no longer grows.

    Raises:
        UserError: The accountant is not installed.
    """
    if not privacy.noise_multiplier:
        return lambda rounds: None
    library = _library()
    orders = library.rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS
    bounds = []
    for event in _events(privacy, privacy.noise_multiplier):
        accountant = library.rdp.RdpAccountant(orders, _relation(privacy))
        accountant.compose(event)
        bounds.append(accountant._rdp)
    # Renyi divergences add up over rounds; to compose from the start takes half a second, too long for each log row
    each = np.minimum.reduce(bounds)

    def epsilon(rounds: int) -> float | None:
        if not rounds:
            return 0.0
        divergences = min(rounds, privacy.rounds) * each
        spent = float(library.rdp.compute_epsilon(orders, divergences, privacy.delta)[0])
        if math.isfinite(spent):
            return spent
        return None

    return epsilon


@functools.cache
def noise_for(privacy: UserPrivacy, epsilon: float) -> float:
    """Return the smallest noise multiplier with which the whole run costs at most the given ``epsilon``.

    The result is rounded up to a multiple of 1 / :data:`PARTS`. ``privacy.noise_multiplier`` is ignored.

    Raises:
        UserError: No noise multiplier reaches ``epsilon``, or the result would be at most ``BRACKET[0]``.
    """
    most = epsilon_after(replace(privacy, noise_multiplier=BRACKET[0]))(privacy.rounds)
    if most is not None and most <= epsilon:
        raise UserError(
            f"{epsilon:g} is larger than {most:,.0f}, the epsilon of the smallest noise multiplier, {BRACKET[0]:g}, "
            f"after {privacy.rounds} rounds. Use a smaller epsilon",
            "privacy.epsilon",
        )
    multipliers = [_calibrated(privacy, bound, epsilon) for bound in range(len(_events(privacy, 1.0)))]
    return math.ceil(min(multipliers) * PARTS) / PARTS


def _calibrated(privacy: UserPrivacy, bound: int, epsilon: float) -> float:
    """Return the noise multiplier at which bound number ``bound`` of :func:`_events` gives ``epsilon``."""
    library = _library()
    try:
        calibrated: float = library.calibrate_dp_mechanism(
            lambda: library.rdp.RdpAccountant(neighboring_relation=_relation(privacy)),
            lambda multiplier: library.SelfComposedDpEvent(_events(privacy, multiplier)[bound], privacy.rounds),
            epsilon,
            privacy.delta,
            library.LowerEndpointAndGuess(*BRACKET),
            tol=0.5 / PARTS,
        )
    except library.mechanism_calibration.NoBracketIntervalFoundError as problem:
        raise UserError(
            f"no amount of noise gives {epsilon:g} in {privacy.rounds} rounds. Use a larger epsilon",
            "privacy.epsilon",
        ) from problem
    return calibrated


def _without_replacement(privacy: UserPrivacy) -> bool:
    """Return whether a fixed number of clients is sampled; false if all clients take part in every round."""
    return privacy.sampling == "fixed" and privacy.participants < privacy.clients


def _events(privacy: UserPrivacy, multiplier: float) -> list[Any]:
    """Return dp-accounting events of one round. Each event bounds the privacy loss of the round."""
    library = _library()
    relative = multiplier / math.sqrt(privacy.messages)
    if _without_replacement(privacy):
        noise = library.GaussianDpEvent(relative / 2)
        return [library.SampledWithoutReplacementDpEvent(privacy.clients, privacy.participants, noise), noise]
    return [library.PoissonSampledDpEvent(privacy.rate, library.GaussianDpEvent(relative))]


def _relation(privacy: UserPrivacy) -> Any:
    relations = _library().NeighboringRelation
    if _without_replacement(privacy):
        return relations.REPLACE_ONE
    return relations.ADD_OR_REMOVE_ONE


@functools.cache
def _library() -> ModuleType:
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        raise UserError(
            "package dp-accounting not installed. Run this command: pip install 'knot_runner[privacy]'", "privacy"
        ) from None
    # orders whose series do not converge are left out (with a warning each), which can only make epsilon larger
    logging.getLogger("absl").setLevel(logging.ERROR)
    return dp_accounting
