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


class Plain:
    def __init__(self, run):
        self.run = run

    def log(self, row, steps):
        pass

    def summarise(self, values):
        pass

    def close(self, failed):
        pass


class Picky(Plain):
    def log(self, row, steps):
        assert None not in row.values(), "no number"


class Deaf(Plain):
    def close(self, failed):
        assert not failed, "cannot fail"


class Careless(Plain):
    def summarise(self, values):
        (self.run.folder / "result.json").write_text("mine")


class Forgetful(Plain):
    def __init__(self, run):
        (run.folder / "begun").touch(exist_ok=False)


@pytest.mark.parametrize(
    ("tracker", "message"),
    [
        (Picky, "in a new run: .*no number"),
        (Forgetful, "in a resumed run: .*did not start"),
        (Deaf, "in a failed run: .*cannot fail"),
        (Careless, "changes the records"),
    ],
)
def test_check_tracker_reports_a_broken_contract(tracker, message, tmp_path):
    TRACKERS["broken"] = tracker
    with pytest.raises(AssertionError, match=message):
        check_tracker("broken", tmp_path)
