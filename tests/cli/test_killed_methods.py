"""``kill -9`` amid the work of every kind of method: the same command again ends with the bits of a run left alone."""

import functools
import json
import signal
from pathlib import Path

import pytest

from knot_runner.cli.main import main
from tests.accounted import accounted
from tests.distil_runs import TINY_DISTIL, TWO_STAGE
from tests.forked import Forked, reached, there
from tests.integration.test_coreset_runs import CORESET
from tests.integration.test_datafree import TINY_FREE
from tests.integration.test_fleet import ASYNC, FLEET, SOUPS
from tests.integration.test_personal_kinds import COSSIM, LANDSCAPE, SMALL
from tests.integration.test_private_messages import METHODS
from tests.integration.test_private_training import PRIVATE
from tests.oracles.methods.test_feddistill import RUNS
from tests.oracles.methods.test_fedgen import FEDGEN
from tests.oracles.methods.test_fedmd import FEDMD
from tests.personal_runs import ALPHAS
from tests.tiny import TINY_IMAGES, replaced

#: While the part that a file like these belongs to is under way.
PHASE, SYNTHESIS = "artefacts/phase1/*/info.json", "artefacts/synthetic/*/commit.json"
PERSONAL = "*/*/*/personalisation/commit.json"
WARM = replaced(TINY_IMAGES, "training.lr=0.1")
TAUGHT = replaced(TINY_IMAGES, "training.lr=0.2", "training.rounds=14", "hardware.workers=1")


def personal(words, *lengths):
    return replaced(words, "training.rounds=1", *(f"method.personalisation.{length}" for length in lengths))


#: (words, the round or the file after which the run is killed)
CASES = {
    "phases": (replaced(TWO_STAGE, "training.distil.epochs=20"), PHASE),
    "data_free": (
        replaced(TINY_DISTIL, "method=data_free", *replaced(TINY_FREE, "method.synthesis.steps=250")),
        SYNTHESIS,
    ),
    "coreset": (replaced(CORESET, "method.epochs=400", "method.distance=exact"), 0),
    "feddf": (replaced(WARM, "training.rounds=40", "method=feddf", "method.distil.weighting=E"), 8),
    "feddistill": (replaced(RUNS["feddistill"], "training.rounds=40"), 8),
    "fedgen": (replaced(FEDGEN, "training.rounds=9", "training.epochs=1"), 2),
    "fedmd": (replaced(FEDMD, "training.rounds=12", "method.distil.epochs=1"), 3),
    "fedala": ([*TAUGHT, "method=fedala"], 3),
    "fedsoup": ([*TAUGHT, "method=fedsoup", "method.fedsoup.start=0"], 3),
    "soup": (
        [*personal(WARM, "epochs=60", "saves=60"), "method=soup", ALPHAS, "method.personalisation.at=all"],
        PERSONAL,
    ),
    "cossim": (personal(COSSIM, "rounds=40"), PERSONAL),
    "transfer_matrix": (personal(SMALL, "steps=200"), PERSONAL),
    "landscape": (personal(LANDSCAPE, "epochs=60", "saves=60"), PERSONAL),
    **{f"{method} of another data set": ([*replaced(TINY_IMAGES, "training.rounds=30", f"method={method}"),
        "method.distil.weighting=E", "transfer=usps", "transfer.limit=60"], 6) for method in ("feddf", "fedmd")},
    **{f"fleet: {name}": (replaced([*words, *more], "training.rounds=30"), 5) for name, words, *more in (
        ("async", ASYNC), ("sync", FLEET, "fleet.deadline=20", "fleet.late=partial"), ("soups", SOUPS),
        ("ditto", ASYNC, "method=ditto"), ("scaffold", ASYNC, "method=scaffold"), ("fedgen", ASYNC, "method=fedgen"),
        ("feddistill", ASYNC, "method=feddistill"), ("feddf", ASYNC, "method=feddf", "method.distil.batch=16"),
    )},
}  # fmt: skip
#: Noise and draws are of seed and round, and empty rounds are rounds.
PRIVATE_CASES = {
    **{method: (replaced(PRIVATE, f"method={method}", "training.rounds=24", "training.participants=1"), 5)
       for method in ("fedavg_chill", "scaffold")},
    **{method: ([*replaced(PRIVATE, *f"method={method}".split(), "training.rounds=12", "training.participants=2"),
        *more], 4) for method, more in METHODS.items()},
}  # fmt: skip


def lasting(out: Path) -> tuple[dict, list[dict], dict[str, bytes]]:
    """All that must be equal: result and rows without times, and every array."""
    (folder,) = (path.parent for path in out.glob("*/*/*/result.json"))
    result = json.loads((folder / "result.json").read_text())
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for row in (result, *rows):
        row.pop("seconds", None), row.pop("digest", None)
    assert not (folder / "personalisation").exists()
    return result, rows, {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


@pytest.mark.thorough
@pytest.mark.parametrize(("words", "after"), [
    *(pytest.param(*case, id=name) for name, case in CASES.items()),
    *(pytest.param(*case, id=f"private {name}", marks=accounted) for name, case in PRIVATE_CASES.items()),
])  # fmt: skip
def test_kill_9_and_the_same_command_again(words, after, tmp_path):
    assert main([*words, f"paths.out={tmp_path / 'alone'}"]) == 0
    out = tmp_path / "killed"
    until = functools.partial(there if isinstance(after, str) else reached, out, after)
    killed = Forked(*words, f"paths.out={out}", until=until)
    assert killed.wait() == -signal.SIGKILL, killed.said
    assert not there(out, "*/*/*/result.json")
    assert main([*words, f"paths.out={out}"]) == 0
    assert lasting(out) == lasting(tmp_path / "alone")
