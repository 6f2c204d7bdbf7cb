"""Every family computes its golden numbers."""

import json
from pathlib import Path

import pytest

from tests.golden import adapter
from tests.golden.record import FILE, LOOSE, compute, described, differences
from tests.of_papers import of_papers

CONTENT = json.loads(FILE.read_text())
ENTRIES = {name: described(CONTENT, name) for name in CONTENT["entries"]}
COMMANDS = {name: adapter.command(entry["method"], entry["settings"], Path()) for name, entry in ENTRIES.items()}


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The folder of all runs, which share equal stages, such as that of a teacher."""
    return tmp_path_factory.mktemp("golden")


@pytest.mark.parametrize("name", of_papers(COMMANDS))
def test_run_has_its_golden_numbers(name, out):
    entry = ENTRIES[name]
    if "privacy" in entry["settings"]:
        pytest.importorskip("dp_accounting", reason="needs the extra privacy")
    tolerance = LOOSE if entry.get("float32 parts") else entry["tolerance"]

    computed = compute(entry, out)

    changes = differences(entry, computed, tolerance)
    assert not changes, "\n".join(changes)
