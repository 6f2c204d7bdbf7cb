"""Every launcher runs a sweep as ``basic`` does."""

from __future__ import annotations

import importlib.util

import pytest

from knot_runner.testing import check_launcher
from tests.fake_ray import faked

#: Launchers, the packages that they need, and words that make them small.
LAUNCHERS = {
    "basic": ("", ()),
    "joblib": ("hydra_plugins.hydra_joblib_launcher", ("hydra.launcher.n_jobs=2",)),
    "submitit_local": ("hydra_plugins.hydra_submitit_launcher", ("hydra.sweeper.max_batch_size=3",)),
    "ray": ("", ()),
}


@pytest.mark.parametrize(
    "name", ["basic", *(pytest.param(name, marks=pytest.mark.thorough) for name in LAUNCHERS if name != "basic")]
)
def test_launcher_conforms(name, monkeypatch):
    package, words = LAUNCHERS[name]
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{name} needs {package}")
    if name == "ray":
        faked(monkeypatch, resources={"CPU": 1.0})
    check_launcher(name, *words)
