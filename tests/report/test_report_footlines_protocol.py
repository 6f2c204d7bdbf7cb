"""Lines under a table that say how its numbers were made where that is not the usual way."""

from __future__ import annotations

from types import SimpleNamespace

from knot_runner.report.tables.footnotes import protocol


def run(status="done", **result):
    return SimpleNamespace(status=status, result=result)


def test_kept_last_epochs_are_reported():
    best, last = ({"local A": {"epoch": 3, "select": "best"}, "distil student": {"epoch": 9, "select": one}}
                  for one in ("best", "last"))  # fmt: skip
    assert protocol([run(kept_epochs=best), run()]) == []
    lines = protocol([run(kept_epochs=last), run("failed", kept_epochs=None)])
    assert lines == ["Of distil, the last epoch was kept, not the best on the valid part."]
