"""Every launcher runs a sweep as ``basic`` does."""

from __future__ import annotations

import importlib.util

import pytest

from knot_runner.testing import check_launcher
from tests.cli.sweep.grids import LAUNCHERS
from tests.fake_ray import faked

#: Of launchers that are not ours: the module that they need.
NEEDS = {"joblib": "hydra_plugins.hydra_joblib_launcher", "submitit_local": "hydra_plugins.hydra_submitit_launcher"}


@pytest.mark.parametrize("name", ["basic", *(pytest.param(one, marks=pytest.mark.thorough) for one in (*NEEDS, "ray"))])
def test_launcher_conforms(name, monkeypatch):
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{name} needs {NEEDS[name]}")
    if name == "ray":
        faked(monkeypatch, resources={"CPU": 1.0})
    check_launcher(name, *LAUNCHERS.get(name, [])[1:])
