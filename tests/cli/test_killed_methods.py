"""``kill -9`` amid a run: the same command again ends with the bits of a run left alone. What federated methods carry
from round to round is checked in process (``integration/conformance/test_methods.py``)."""

import functools
import signal
import time

import pytest

from tests.forked import Forked, reached, there
from tests.integration.test_plugins import own
from tests.of_papers import of_papers
from tests.runs import run
from tests.tiny import CORESET, TINY, TINY_IMAGES, replaced

ENSEMBLE = own("ensemble.py", TINY_IMAGES, "method=ensemble", "training.local_epochs=40")
#: Enough epochs that a kill lands between two of them.
KNOT = replaced(TINY, "training.local.epochs=4", "training.pretrain.epochs=3", "training.distill.epochs=12")
STAGES = [f"artifacts/{stage}/*/commit.json" for stage in ("local", "distill")]
#: (words, the rounds or the file after which the run is killed)
CASES = {
    "scaffold": (replaced(TINY_IMAGES, "method=scaffold", "training.rounds=40"), [1, 12]),
    "sinkhorn_e": ([*KNOT, "method=sinkhorn_e"], STAGES),
    "coreset": (replaced(CORESET, "method.epochs=400", "method.distance=exact"), [0]),
    "a plug-in's family": (ENSEMBLE, [0, 2]),
}


def left_by(record):
    """All that must be equal: result and rows without times, every array and the answers to probes."""
    files = [*record.folder.glob("*.safetensors"), *record.folder.glob("probe.json")]
    return record.result, record.rows, {path.name: path.read_bytes() for path in files}


@pytest.mark.thorough
@pytest.mark.parametrize("name", of_papers({name: words for name, (words, _) in CASES.items()}))
def test_killed_run_ends_with_the_same_bits(name, tmp_path):
    words, moments = CASES[name]
    out = tmp_path / "killed"
    for after in moments:
        until = functools.partial(there if isinstance(after, str) else reached, out, after)
        killed = Forked(*replaced(words, "hardware.num_workers=2"), f"paths.output_dir={out}", until=until)
        assert killed.wait() == -signal.SIGKILL, killed.said
        assert not there(out, "*/*/*/result.json")
    again = run(out, *words)
    assert left_by(again) == left_by(run(tmp_path / "alone", *words))
    assert not there(out, "**/*.tmp")


#: A run that trains for hours on two workers -> a file that it has once they are at work.
ENDLESS = {
    "stages": (replaced(TINY, "training.local.epochs=500", "training.pretrain.epochs=500"), STAGES[0]),
    "rounds": (replaced(TINY_IMAGES, "training.rounds=100000"), "*/*/*/commit.json"),
}


def begun(name, out):
    """The run's process, with its workers at work."""
    words, pattern = ENDLESS[name]
    process = Forked(*replaced(words, "hardware.num_workers=2"), f"paths.output_dir={out}")
    for _ in range(1200):
        if there(out, pattern):
            assert len(process.processes) == 3
            return process
        assert not process.ended, process.said
        time.sleep(0.05)
    raise AssertionError(f"{pattern} never came")


@pytest.mark.parametrize(("name", "number", "code"), [
    ("rounds", signal.SIGINT, 130), ("stages", signal.SIGKILL, -9),  # the parent alone, not its group
])  # fmt: skip
def test_signal_ends_a_run_and_its_workers(name, number, code, tmp_path):
    process = begun(name, tmp_path)
    process.send(number)
    assert process.wait(30) == code
    assert "Traceback" not in process.said
    for _ in range(200):
        if not process.processes:
            return
        time.sleep(0.05)
    raise AssertionError("a worker outlived its parent")
