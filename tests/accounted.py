"""What tests of private training share: whether the accountant is there, a mechanism, and a run's private method."""

import importlib.util

import pytest

from knot_runner import METHODS, Method, compose
from knot_runner.methods.around.privacy import UserPrivacy, privately
from knot_runner.methods.around.server_distillation import with_distillation
from knot_runner.methods.federation import Federation
from tests.feddf_runs import setup_of

accounted = pytest.mark.skipif(not importlib.util.find_spec("dp_accounting"), reason="needs the extra privacy")


def mechanism(z: float, participants: int, clients: int, sampling: str = "poisson", **facts) -> UserPrivacy:
    """A mechanism with norms of at most 1; ``facts``: its ``rounds`` and ``delta``."""
    return UserPrivacy(1.0, z, sampling, participants, clients, **facts)


def private_of(tmp_path, words) -> tuple[Method, Federation, list[str]]:
    """The private method of a run, its clients as they are sampled, and notes on both."""
    (job,) = compose([*words, f"paths.output_dir={tmp_path}"])
    method = with_distillation(METHODS[job.settings.method.algorithm], job.settings.method)
    return privately(method, job.settings.privacy, job.settings, setup_of(tmp_path, words).federation)
