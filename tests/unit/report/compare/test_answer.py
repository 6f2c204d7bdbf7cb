"""``knot-runner compare`` from run folders to the table: groups, means, states and best-of."""

import os
import random
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import knot_runner as kr
from knot_runner.cli.parsers import run_verb
from knot_runner.report.compare import measures as compare_measures
from knot_runner.report.compare.files import comparison_csv
from knot_runner.report.compare.measures import direction, unit_of
from knot_runner.report.frame import read_runs
from knot_runner.report.render.markup import table_markdown
from knot_runner.results import total_costs
from tests.golden.messages import refuses
from tests.unit.report import compared
from tests.unit.report.compared import ask, begun, cells, column, heads, made, text, three_temperatures


@pytest.fixture
def grid(tmp_path):
    return three_temperatures(tmp_path)


def test_rows_group_differing_settings_with_scipy_intervals(grid):
    table = ask(grid)
    assert heads(table) == ["temperature", "n", "accuracy", "f1"]
    assert column(table, 0) == ["0.05", "1", "4"] and column(table, 1) == [3, 3, 3]
    values = 0.7 + 0.02 * np.arange(3)
    low, high = stats.t.interval(0.95, 2, values.mean(), stats.sem(values))
    found = cells(table)[0][2]
    assert found.n == 3
    np.testing.assert_allclose([found.mean, found.half], [values.mean(), (high - low) / 2], rtol=1e-12)
    assert "differ" not in text(table)


def test_filters_and_measures_choose_runs_and_columns(grid):
    table = ask(grid, "method=fedavg_chill", "method.temperature<=1", "seed=0,2", measures=("seconds", "best.accuracy"))
    assert heads(table) == ["temperature", "n", "seconds.total", "best.accuracy"]
    assert [row[2].mean for row in cells(table)] == [11.0, 11.0]
    assert [round(row[3].mean, 9) for row in cells(table)] == [0.72, 0.62]


@pytest.mark.parametrize(("run", "asked", "lines"), [
    ({"seed": 0, "training__rounds": 5}, {"by": ("method.name",)}, [  # what is averaged over
        "runs that differ in method.temperature (0.05, 1, 4), training.rounds (3, 5)", "a seed counts more than once"]),
    ({"seed": 0, "training__rounds": 9, "method__temperature": 2}, {"by": ("method.temperature",)}, [
        "rows also differ in settings that are not shown: training.rounds (3, 9)."]),  # what goes along with the groups
    ({"seed": 0, "method__decay": 9, "method__temperature": 2}, {}, ["are not shown: method.decay ("]),
    ({"told": {"data": "b"}, "training__rounds": 4}, {}, ["Runs of the same task used different data"]),
    ({"seed": 7, "method__temperature": 1}, {}, ["seeds (number of rows): 0,1,2 (2); 0,1,2,7 (1)."]),
])  # fmt: skip
def test_lines_warn_about_hard_to_compare_rows(grid, run, asked, lines):
    made(grid, 0.9, **run)
    assert all(line in text(ask(grid, **asked)) for line in lines)


def test_lines_report_filter_value_without_runs(grid):
    assert "seed=0,7: no run has the value 7. seed has the values 0, 1, 2." in ask(grid, "seed=0,7").lines


def test_plugins_of_runs_are_named_but_not_loaded(grid, tmp_path):
    plugin = tmp_path / "foreign_plugin.py"
    plugin.write_text("raise SystemExit('executed')")
    made(grid, 0.9, plugins=[str(plugin)])
    assert f"no title, unit or range. To load the plug-ins, add plugins=[{plugin}]." in text(ask(grid))
    plugin.write_text("")
    assert "no title, unit or range" not in text(ask(grid, f"plugins=[{plugin}]"))


def test_states_are_counted_and_have_no_number(grid):
    compared.diverged(grid, method__temperature=8, seed=0)
    compared.failed(grid, method__temperature=8, seed=1)
    begun(grid, method__temperature=8, seed=2)
    (made(grid, 0.9, method__temperature=8, seed=3) / "result.json").write_text('{"status": "done"')
    table = ask(grid)
    assert heads(table)[:6] == ["temperature", "n", "div.", "failed", "damaged", "unfinished"]
    assert cells(table)[-1] == ("8", 0, 1, 1, 1, 1, None, None)
    assert "result.json: cannot be read" in text(table) and "9 finished of 13 runs" in table.title
    assert cells(ask(grid, "status=diverged,failed")) == [(0, 1, 1)]


def test_runs_without_a_number_are_counted(grid):
    made(grid, 0.5, {"target": 0.4, "rounds_to_target": 2}, method__temperature=1, seed=5)
    table = ask(grid, measures=("rounds_to_target",))
    none, one, other = column(table, 2)
    assert (none, one.mean, one.half, one.n, one.text, other) == (None, 2.0, None, 1, "2 (1)", None)
    assert "9 of 10 finished runs have no value (target not reached or not set)" in text(table)


def test_rows_are_runs_by_run_id(grid):
    begun(grid, method__temperature=1, seed=9)
    table = ask(grid, "method.temperature=1", by=("run_id", "seed", "status"), sort="accuracy")
    assert heads(table) == ["run_id", "seed", "status", "n", "unfinished", "accuracy", "f1"]
    assert column(table, 1) == ["2", "1", "0", "9"] and "seeds" not in text(table)
    assert [cell and cell.mean for cell in column(table, 5)] == pytest.approx([0.64, 0.62, 0.6, None])


@pytest.mark.parametrize(
    ("by", "order"), [("accuracy", "2 3 1"), ("loss", "2 3 1"), ("best.round", "3 2 1"), ("temperature", "1 2 3")]
)
def test_rows_are_sorted(tmp_path, by, order):
    for temperature, accuracy in ((1, 0.5), (2, 0.9), (3, 0.7)):
        best = {"best": {"accuracy": accuracy, "round": temperature}}
        made(tmp_path, accuracy, best, method__temperature=temperature)
    assert column(ask(tmp_path, sort=by, measures=("accuracy", "loss", "best.round")), 0) == order.split()


def test_best_setting_and_its_rule(grid):
    table = ask(grid, best="accuracy", over=("method.temperature",))
    assert cells(table)[0][:3] == ("0.05", 3, 3) and cells(table)[0][3].mean == pytest.approx(0.72)
    assert "of 3 settings of method.temperature, the setting with the highest mean of accuracy" in text(table)
    assert "optimistic" in text(table)
    assert ask(grid, best="loss", over=("method.temperature",)).rows[0].keys[0] == "0.05"
    assert ask(grid, best="min:accuracy", over=("method.temperature",)).rows[0].keys[0] == "4"
    assert ask(grid, best="accuracy", by=()).rows[0].keys[0] == "0.05"


def test_best_setting_of_each_row(grid):
    for seed in range(3):
        made(grid, 0.8, method__temperature=4, seed=seed, method__name="fedprox", method__algorithm="fedprox")
    table = ask(grid, best="accuracy", over=("method.temperature",))
    assert [row[:4] for row in cells(table)] == [("fedavg_chill", "0.05", 3, 3), ("fedprox", "4", 3, 1)]
    assert column(ask(grid, best="accuracy", over=("method",)), 0) == ["fedprox"]


def test_best_setting_uses_seeds_common_to_all(grid):
    compared.diverged(grid, method__temperature=0.01, seed=0)
    for seed in (1, 2):
        made(grid, 0.99, method__temperature=0.01, seed=seed)
    made(grid, 0.01, method__temperature=0.05, seed=9)  # one seed more changes nothing
    table = ask(grid, best="accuracy", over=("method.temperature",))
    assert cells(table)[0][:3] == ("0.05", 3, 4) and "1 settings were not considered" in text(table)
    assert cells(table)[0][3].mean == pytest.approx(0.72)


def test_auc_interval_stops_at_1(tmp_path):
    values = (0.9, 0.99)
    for seed, value in enumerate(values):
        made(tmp_path, 0.5, {"diverged": {"auc": value, "seconds": value}}, seed=seed)
    table = ask(tmp_path, measures=("diverged.auc", "diverged.seconds"))
    auc, seconds = (
        cell for cell, head in zip(cells(table)[0], heads(table), strict=True) if head.startswith("diverged.")
    )
    low, high = stats.t.interval(0.95, 1, np.mean(values), stats.sem(values))
    assert high > 1 and auc.band == (pytest.approx(low), 1.0)
    assert seconds.band == (pytest.approx(low), pytest.approx(high))


@pytest.mark.parametrize("words", [
    "task=mnits", "method.temprature=1", "seed=0 training.lr>1", "--by=tsk", "--measure=acc", "--mesure=f1",
    "--best=accuracy", "--best=best.round --over=method.temperature", "--best=top:f1 --over=method.temperature",
    "--best=f1 --over=training.lr", "--best=f1 --over=seed", "--over=method", "--by", "--export=t.xlsx", "--sort=loss",
    "federated/fedprox", "-m",
])  # fmt: skip
def test_request_that_cannot_be_answered_is_refused(grid, words):
    with refuses():
        run_verb("compare", [f"paths.output_dir={grid}", *words.split()])


def test_folder_without_runs_is_refused(tmp_path):
    with refuses():
        ask(tmp_path / "none")
    with refuses():
        ask(tmp_path)
    begun(tmp_path)
    assert cells(ask(tmp_path)) == [(0, 1)]


def test_foreign_and_damaged_folders_are_named(grid):
    (grid / "mnist" / "fedavg_chill" / "x" / "config.yaml").parent.mkdir()
    (grid / "mnist" / "fedavg_chill" / "x" / "config.yaml").write_text("a: &b [*b]\n")
    other = begun(grid, task__name="cifar10")
    other.rename(grid / "mnist" / "fedavg_chill" / "moved")
    lone = grid / "a" / "b" / "c"
    lone.mkdir(parents=True)
    (lone / "result.json").write_text("{}")
    early = compared.failed(grid, seed=21)
    (early / "config.yaml").unlink()
    pipe = begun(grid, seed=20)
    os.mkfifo(pipe / "result.json")
    (grid / "tables").mkdir()
    (grid / "artifacts" / "vectors" / "00").mkdir(parents=True)
    table = ask(grid)
    assert column(table, 1) == [3, 3, 3]
    assert "folders without a valid run: a/b/c (no config.yaml)" in text(table) and "1 more" in text(table)


def test_damaged_files_never_give_a_wrong_number(grid):
    """Whatever happens to a file, the run is left out, or reported as doubtful, or has its own number."""
    folder = made(grid, 0.123456, method__temperature=16)
    chance = random.Random(0)
    for name in ("result.json", "config.yaml"):
        whole = (folder / name).read_bytes()
        for i in range(6):
            bad = bytearray(whole)
            if i % 3:
                bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
            else:
                bad = bad[: chance.randrange(len(bad))]
            (folder / name).write_bytes(bytes(bad))
            table = ask(grid, by=("method.temperature",), measures=("accuracy",))
            place = heads(table).index("accuracy")
            means = {row[0]: row[place].mean for row in cells(table) if row[place]}
            right = {"16": 0.123456, "0.05": 0.72, "1": 0.62, "4": 0.52}
            assert "Left out" in text(table) or "Not counted" in text(table) or means == pytest.approx(right), (name, i)
        (folder / name).write_bytes(whole)


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

    unlike = (0, "metrics.f1.ALL", 0.5), (0, "seconds.total", 0.5), (1, "metrics.sd.ALL", 0.5)
    assert told(*unlike) == told(*unlike, (0, "metrics.sd.ALL", None)) == ["metrics.f1.ALL"]
    assert told(*unlike, (0, "metrics.sd.ALL", 0.1)) == ["metrics.sd.ALL"]
    assert told((0, "seconds.total", 1.0), (1, "seconds.total", 2.0)) == ["seconds.total"] and told() == []


def test_direction_of_a_measure():
    directions = {
        "metrics.f1.ALL": "higher", "teachers.MELD.sd": "lower", "seconds.stages.x": "lower", "best.round": None,
        "metrics.accuracy.ALL": "higher", "metrics.id_loss.ALL": "lower", "rounds_to_target": "lower", "ari": "higher",
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
    assert "bytes: 2 of 8 finished runs have no value" in text(table)
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
