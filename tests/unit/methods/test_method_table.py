"""The table of methods: our own are imported one at a time, those of plug-ins are objects."""

import subprocess
import sys
from dataclasses import replace

import pytest

from knot_runner import METHODS, AveragingSettings, Method
from knot_runner.methods.contract import MethodTable
from tests.golden.messages import refuses

ONE_IMPORTED = """
import sys
from knot_runner.methods.contract import METHODS
assert "fedgen" in METHODS and "knot" in METHODS and "fedgn" not in METHODS
folder = "knot_runner.methods"
before = {name for name in sys.modules if name.startswith(folder)}
print(sorted(before))
METHODS["fedrep"]
methods = ("personal", "apfl", "fedgen", "knot")
print(sorted(name for name in sys.modules if name.startswith(folder) and name.endswith(methods)))
"""


def test_method_table_imports_one_method_at_a_time():
    done = subprocess.run([sys.executable, "-c", ONE_IMPORTED], check=True, capture_output=True, text=True)
    before, after = done.stdout.splitlines()
    assert before == "['knot_runner.methods', 'knot_runner.methods.contract']"
    assert after == "['knot_runner.methods.federated.personal']"


def test_plug_in_adds_and_removes_a_method():
    """Whose settings are a dataclass that extends ours."""
    for settings in (None, int, type("Plain", (AveragingSettings,), {})):
        with refuses():
            METHODS["own"] = replace(METHODS["fedavg"], settings=settings)
        assert "own" not in METHODS
    own = Method(*[lambda *_: {}] * 3)
    table = MethodTable("METHODS", {"fedavg": "knot_runner.methods.federated.averaging:FEDAVG"})
    table["own"] = own
    assert (list(table), len(table), table["own"]) == (["fedavg", "own"], 2, own)
    with refuses():
        table["fedavg"] = own
    del table["fedavg"]
    assert "fedavg" not in table
    with pytest.raises(KeyError, match="fedavg"):
        table["fedavg"]
