"""Optional engines: a folder that adds itself to the table, and that nothing else needs."""

import subprocess
import sys
from pathlib import Path

import pytest

from knot_runner.composing.commands import compose_all
from knot_runner.config.settings import groups
from knot_runner.util.errors import UserError

PACKAGE = Path(groups.__file__).parents[2]


def test_no_other_module_names_the_optional_engine():
    for path in PACKAGE.rglob("*.py"):
        if "engines" not in path.relative_to(PACKAGE).parts:
            text = path.read_text()
            assert "engines.native" not in text and '"native"' not in text, path


def test_without_its_folder_the_engine_is_an_unknown_name(monkeypatch):
    monkeypatch.setattr(groups, "OPTIONAL_ENGINES", "knot_runner.bundles")  # a package without engines
    monkeypatch.delitem(groups.ENGINES.data, "native", raising=False)
    with pytest.raises(UserError) as problem:
        compose_all(["task=femnist", "method=fedavg", "hardware.engine=native"])
    said = "hardware.engine: there is no engine 'native' (there is: auto, lean, loop, ray, stacked)"
    assert str(problem.value) == said


def test_composing_with_it_imports_no_torch():
    code = (
        "import sys; from knot_runner.composing.commands import compose_all; "
        "compose_all(['task=femnist', 'method=fedavg', 'hardware.engine=native']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
