"""Measures of ``compare``: their names, direction and units."""

from dataclasses import replace

import pandas as pd
import pytest

import knot_runner as kr
from knot_runner.report.compare import measures as compare_measures
from knot_runner.report.compare.files import comparison_csv
from knot_runner.report.compare.measures import direction, unit_of
from knot_runner.report.frame import read_runs
from knot_runner.report.render.markup import table_markdown
from knot_runner.results.base import total_costs
from tests.golden.messages import refuses
from tests.unit.report.compared import ask, cells, column, heads, made, text

NUMBERS = ["metrics.f1.ALL", "metrics.f1.MELD", "metrics.client_accuracy.weighted", "seconds.total", "best.accuracy"]


def test_measures_have_short_forms():
    names = ("f1", "f1.MELD", "seconds", "best.accuracy", "client_accuracy.weighted", "metrics.f1.ALL")
    found = [compare_measures.resolve_measure(name, NUMBERS) for name in names]
    assert found == [NUMBERS[i] for i in (0, 1, 3, 4, 2, 0)]
    assert [compare_measures.measure_title(key) for key in found[:3]] == ["f1", "f1.MELD", "seconds.total"]


@pytest.mark.parametrize("name", ["f1.MELT", "client_accuracy", "zzz", "best.acuracy"])
def test_unknown_measure_is_refused(name):
    with refuses():
        compare_measures.resolve_measure(name, NUMBERS)


def test_measures_of_defaults_to_shared_or_first(tmp_path):
    for seed in range(2):
        made(tmp_path, 0.5, seed=seed)
    runs = read_runs(tmp_path)
    assert compare_measures.measures_of(runs, ()) == ["metrics.accuracy.ALL", "metrics.f1.ALL"]

    def told(*rows):
        metrics = pd.DataFrame(rows, columns=["run", "metric", "value"]).set_index("run")
        return compare_measures.measures_of(replace(runs, metrics=metrics), ())

    unlike = (0, "metrics.f1.ALL", 0.5), (0, "metrics.sd.ALL", 0.5), (1, "value", 0.5)
    assert told(*unlike) == ["metrics.f1.ALL"]
    assert told(*unlike, (0, "value", 0.1)) == ["value"] and told(*unlike, (0, "value", None)) == ["metrics.f1.ALL"]
    assert told((0, "seconds.total", 1.0), (1, "seconds.total", 2.0)) == ["seconds.total"] and told() == []


def test_direction_of_a_measure():
    directions = {
        "metrics.f1.ALL": "higher", "teachers.MELD.sd": "lower", "seconds.stages.x": "lower", "best.round": None,
        "metrics.accuracy.ALL": "higher", "metrics.distance.ALL": "lower", "rounds_to_target": "lower", "ari": "higher",
        "costs.bytes_to_target": "lower", "costs.server_flops": "lower",
    }  # fmt: skip
    assert {key: direction(key) for key in directions} == directions


@pytest.fixture
def spread(tmp_path):
    """T=1: 4 MB and .5; T=2: 1 MB and .4; T=3: 6 MB and .45; T=4: costs are not recorded."""
    for seed in (0, 1):
        for temperature, accuracy, sent in ((1, 0.5, 2_000_000), (2, 0.4, 500_000), (3, 0.45, 3_000_000)):
            row = {"bytes_up": sent, "bytes_down": sent, "client_flops": 6_000_000, "server_flops": 0}
            costs = {"costs": total_costs([row], None, "models")}
            made(tmp_path, accuracy, costs, seed=seed, method__temperature=temperature)
        made(tmp_path, 0.9, seed=seed, method__temperature=4)
    return tmp_path


def test_rows_in_the_order_of_bytes(spread):
    table = ask(spread, measures=("bytes", "accuracy"), sort="bytes")
    assert heads(table) == ["temperature", "n", "bytes", "accuracy"]
    assert column(table, 0) == ["2", "1", "3", "4"]
    assert [cell and cell.mean for cell in column(table, 2)] == [1e6, 4e6, 6e6, None]
    assert "bytes: 2 of 8 finished runs have none" in text(table)
    frame = kr.compare(out=spread, measure="bytes,accuracy", sort="bytes")
    assert isinstance(frame, pd.DataFrame) and frame["costs.bytes.mean"].tolist()[:3] == [1e6, 4e6, 6e6]


def test_printed_units_scale_while_csv_keeps_bytes(spread):
    table = ask(spread, sort="bytes", measures=("bytes", "bytes_up", "client_flops", "bytes_per_round"))
    assert [cell.text for cell in cells(table)[0][2:]] == ["1±0", "0.500±0.000", "6±0", "1±0"]
    assert "bytes (MB) | bytes\\_up (MB) | client\\_flops (MFLOP)" in table_markdown(table)
    head, first, *_ = comparison_csv(table).splitlines()
    assert "costs.bytes.mean" in head and "1000000.0" in first


@pytest.mark.parametrize(("key", "unit"), [
    ("costs.bytes", ("kB", 1e3)), ("costs.bytes_to_target", ("kB", 1e3)), ("costs.client_flops", ("kFLOP", 1e3)),
    ("costs.stages.local a", ("kFLOP", 1e3)), ("costs.example_tokens", ("", 1.0)), ("parameters", ("", 1.0)),
    ("synthesis.released.bytes", ("", 1.0)), ("other.bytes", ("", 1.0)),
])  # fmt: skip
def test_unit_of_a_measure(key, unit):
    assert unit_of(key, [0.0, 300.0, 4000.0]) == unit and unit_of(key, [])[1] == 1.0
