"""The guide's table of what goes together is what the program does, and random compositions keep to it."""

import importlib
from argparse import Namespace

import pytest

from knot_runner.util.config_yaml import config_folder


@pytest.mark.thorough
def test_guide_has_the_table_and_random_compositions_keep_to_it(monkeypatch, capsys):
    monkeypatch.syspath_prepend(config_folder().parent / "scripts")
    script = importlib.import_module("compositions")
    found = script.table()
    assert script.markdown(found) in script.GUIDE.read_text(), "run python scripts/compositions.py table"
    monkeypatch.setattr(script, "table", lambda: found)
    monkeypatch.setattr(script.preview, "preview", script.preview.preview)  # which trying replaces
    tries = Namespace(inside=12, outside=30, run=1, seed="a test", verbose=False)
    assert script.tried(tries) == 0, capsys.readouterr().out
