"""``kill -9`` amid a run: the same command again ends with the bits of a run left alone.

What federated methods carry from round to round is checked in process (``integration/conformance/test_methods.py``).
"""

import functools
import signal

import pytest

from tests.distill_runs import TINY_DISTILL, TWO_STAGE
from tests.forked import Forked, reached, there
from tests.integration.test_datafree import TINY_FREE
from tests.integration.test_plugins import own
from tests.papers.fedwad.test_coreset_runs import CORESET, DIGITS, KNN
from tests.runs import run
from tests.tiny import TINY_IMAGES, replaced

FREE = replaced(TINY_DISTILL, "method=data_free", *replaced(TINY_FREE, "method.synthesis.steps=250"))
ENSEMBLE = own("ensemble.py", TINY_IMAGES, "method=ensemble", "training.local_epochs=40")
PROBE = [*DIGITS, "method=temperature_probe", "method.warm_epochs=1", "model.hidden=[8]"]
#: (words, the rounds or the file after which the run is killed)
CASES = {
    "fedavg": (replaced(TINY_IMAGES, "training.rounds=30"), [2]),
    "scaffold": (replaced(TINY_IMAGES, "method=scaffold", "training.rounds=70"), [1, 12, 30]),
    "phases": (replaced(TWO_STAGE, "training.distill.epochs=20"), ["artifacts/phase1/*/info.json"]),
    "data_free": (FREE, ["artifacts/synthetic/*/commit.json"]),
    "coreset": (replaced(CORESET, "method.epochs=400", "method.distance=exact"), [0]),
    "knn": (KNN, [0, 2]),
    "probe": (PROBE, [0, 1]),
    "a plug-in's family": (ENSEMBLE, [0, 2]),
}


def left_by(record):
    """All that must be equal: result and rows without times, and every array."""
    return record.result, record.rows, {path.name: path.read_bytes() for path in record.folder.glob("*.safetensors")}


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
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
