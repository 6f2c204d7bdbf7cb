"""What a run imports: its own process says so, since this one has imported everything."""

import json
import multiprocessing
import subprocess
import sys

import joblib  # noqa: F401  registers the start method loky
import numpy as np
import pytest

from knot_runner.util.processes import prepared
from tests.data.images.conftest import write_leaf

SCRIPT = """
import json, sys
from knot_runner.cli.main import main
heavy = {"sklearn", "scipy", "pandas", "matplotlib", "transformers", "datasets", "sympy", "torch._dynamo", "PIL"}
others = ["transport", "methods.losses", "methods.federated.fleet", "methods.federated.user_privacy", "data.hub",
          "data.images.cifar", "data.images.parties", "data.pools", "engine.execute", "models.mobilenet",
          "pipelines.clients.transfer_set", "pipelines.personalisation", "pipelines.rounds.private_training"]
heavy |= {f"knot_runner.{name}" for name in others}
for run in sys.argv[1:]:
    code = main(json.loads(run))
    print("imports:", code, sorted(heavy & set(sys.modules)))
"""


@pytest.mark.thorough
def test_a_federated_run_imports_nothing_that_it_does_not_use(tmp_path):
    """scikit-learn, scipy and pandas took half of a short run's time, for one way to cut images in two, and for the
    file of digits that comes with scikit-learn. Of ours, FedAvg reads no other method's rooms."""
    draws = np.random.default_rng(0)
    writers = {name: (draws.random((12, 64)).tolist(), draws.integers(0, 10, 12).tolist()) for name in "abc"}
    write_leaf(tmp_path / "train" / "a.json", writers)
    small = ["task=femnist", "task.shape=[1,8,8]", "model.hidden=[4]", "training.rounds=1", "training.batch=8",
             "partition.count=3",
             "training.participants=2", "hardware.workers=1", f"paths.out={tmp_path / 'out'}"]  # fmt: skip
    local = ["task.source=local", f"paths.data={tmp_path}", "task.local.train=[train]", "task.local.test=[]"]
    runs = [json.dumps([*small, *source]) for source in (local, ["task.source=embedded"])]
    found = subprocess.run([sys.executable, "-c", SCRIPT, *runs], capture_output=True, text=True)
    said = [line for line in found.stdout.splitlines() if line.startswith("imports:")]
    assert said == ["imports: 0 []"] * 2, found.stdout + found.stderr
    assert len(list(tmp_path.glob("out/*/*/*/result.json"))) == 2


def test_processes_under_joblib_need_not_know_joblib():
    """They were told their parent's start method, loky, which only scikit-learn's import of joblib made known."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("loky", force=True)
    try:
        prepared([])
        assert multiprocessing.get_start_method() in multiprocessing.get_all_start_methods()
    finally:
        multiprocessing.set_start_method(before, force=True)
