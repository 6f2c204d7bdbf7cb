"""What tests of private training share: whether the accountant is there, and a mechanism."""

import importlib.util

import pytest

from knot_runner.methods.federated.user_privacy import UserPrivacy

accounted = pytest.mark.skipif(not importlib.util.find_spec("dp_accounting"), reason="needs the extra privacy")


def mechanism(z: float, participants: int, clients: int, sampling: str = "poisson") -> UserPrivacy:
    return UserPrivacy(1.0, z, sampling, participants, clients)
