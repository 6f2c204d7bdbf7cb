"""The guide's table of what goes together is what the program does."""

import importlib

import pytest

from knot_runner.util.config_yaml import config_folder


@pytest.mark.thorough
def test_guide_has_the_table(monkeypatch):
    monkeypatch.syspath_prepend(config_folder().parent / "scripts")
    script = importlib.import_module("compositions")
    assert script.markdown(script.table()) in script.GUIDE.read_text(), "run python scripts/compositions.py table"
