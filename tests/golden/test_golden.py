"""Every family computes its golden numbers."""

import json

import pytest

from tests.golden import adapter
from tests.golden.record import FILE, LOOSE, compute, described, differences

CONTENT = json.loads(FILE.read_text())


@pytest.mark.parametrize("name", CONTENT["entries"])
def test_run_has_its_golden_numbers(name, tmp_path):
    entry = described(CONTENT, name)
    same_bits = adapter.arithmetic() == CONTENT["made under"]
    tolerance = entry["tolerance"] if same_bits or not entry.get("float32 parts") else LOOSE

    computed = compute(entry, tmp_path, digest=same_bits)

    assert differences(entry, computed, tolerance) == []
