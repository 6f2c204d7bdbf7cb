"""Every entry of ``TRACKERS``, with a fake of its service, and a plug-in's keeps the contract."""

import pytest

from knot_runner.config.plugins import load_plugins
from knot_runner.engine.tracker import TRACKERS
from knot_runner.testing import check_tracker
from tests.fake_trackers import fake_mlflow, fake_tensorboard, fake_wandb
from tests.plugin_tables import EXAMPLES, tables_restored  # noqa: F401

pytestmark = pytest.mark.usefixtures("tables_restored")
FAKES = {"wandb": fake_wandb, "tensorboard": fake_tensorboard, "mlflow": fake_mlflow}


@pytest.mark.parametrize("name", TRACKERS)
def test_tracker_keeps_its_contract(name, tmp_path, monkeypatch):
    FAKES[name](monkeypatch)
    check_tracker(name, tmp_path)


def test_tracker_of_a_plugin_keeps_its_contract(tmp_path):
    load_plugins([str(EXAMPLES / "own_tracker.py")])
    check_tracker("lines", tmp_path, {"file": "lines.txt"})


def fail_if(condition):
    if condition:
        raise ValueError("no such number")


#: The one method that breaks the contract, and what is reported.
BROKEN = [
    ({"log": lambda self, row, steps: fail_if(None in row.values())}, "in a new run: .*no such number"),
    ({"__init__": lambda self, run: fail_if((run.folder / "1").exists() or (run.folder / "1").touch())},
     "in a resumed run: .*did not start"),
    ({"close": lambda self, failed: fail_if(failed)}, "in a failed run: .*no such number"),
    ({"__init__": lambda self, run: setattr(self, "run", run),
      "summarize": lambda self, values: (self.run.folder / "result.json").write_text("")}, "changes the records"),
]  # fmt: skip


@pytest.mark.parametrize(("methods", "message"), BROKEN)
def test_check_tracker_reports_a_broken_contract(methods, message, tmp_path):
    idle = {name: lambda self, *_: None for name in ("__init__", "log", "summarize", "close")}
    TRACKERS["broken"] = type("Broken", (), idle | methods)
    with pytest.raises(AssertionError, match=message):
        check_tracker("broken", tmp_path)
