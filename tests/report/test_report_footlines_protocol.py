"""Lines under a table that say how its numbers were made where that is not the usual way."""

from __future__ import annotations

from types import SimpleNamespace

from knot_runner.report.tables.footnotes import protocol


def run(status="done", **result):
    return SimpleNamespace(status=status, result=result)


def test_a_last_epoch_and_another_geomloss_are_said():
    best, last = ({"local A": {"epoch": 3, "select": "best"}, "distil student": {"epoch": 9, "select": one}}
                  for one in ("best", "last"))  # fmt: skip
    assert protocol([run(kept_epochs=best, versions={"geomloss": "0.2.4"}), run()]) == []
    lines = protocol([run(kept_epochs=last), run(versions={"geomloss": "0.3.1"}), run("failed", kept_epochs=None)])
    assert lines == [
        "Of distil, the last epoch was kept, not the best on the valid part.",
        "solver=geomloss ran under geomloss 0.3.1: values 2e-5 to 6e-5 above those of the published runs' 0.2.4.",
    ]
