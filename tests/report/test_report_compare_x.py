"""``knot-runner compare --x``: measures against a setting or a measured cost."""

from __future__ import annotations

import pytest

from knot_runner.cli.verbs.compare import answer_of
from knot_runner.report.compare.files import printed_rows, sheet_csv, sheet_markdown
from knot_runner.results.base import total_costs
from tests.golden.messages import refuses
from tests.report.compared import ask, column, heads, made, text, three_temperatures

FLOPS = {"client_flops": 6_000_000, "server_flops": 0}


def costing(root, accuracy, sent, seed=0, reached=None, **changes):
    """A finished run that sends so many bytes each way in its one counted round."""
    costs = total_costs([{"bytes_up": sent, "bytes_down": sent, **FLOPS}], reached, "models")
    return made(root, accuracy, {"costs": costs}, seed=seed, **changes)


@pytest.fixture
def spread(tmp_path):
    """T=1: 4 MB and .5; T=2: 1 MB and .4; T=3: 6 MB and .45, which T=1 beats; T=4: of an earlier version."""
    for seed in (0, 1):
        for temperature, accuracy, sent in ((1, 0.5, 2_000_000), (2, 0.4, 500_000), (3, 0.45, 3_000_000)):
            costing(tmp_path, accuracy, sent, seed, method__temperature=temperature)
        made(tmp_path, 0.9, seed=seed, method__temperature=4)
    return tmp_path


def test_rows_in_the_order_of_bytes_and_which_are_not_beaten(spread):
    sheet = ask(spread, x="bytes", measures=("accuracy",))
    assert heads(sheet) == ["temperature", "n", "bytes", "accuracy"]
    assert column(sheet, 0) == ["2", "1", "3", "4"]
    assert [row[2] and row[2].mean for row in sheet.rows] == [1e6, 4e6, 6e6, None]
    assert "accuracy against bytes: not beaten in both, by the means: 2; 1." in sheet.lines
    assert "bytes: 2 of 8 finished runs have none" in text(sheet)


def test_of_measures_in_which_less_is_better_the_lower_is_better(spread):
    """Loss is 2 less the accuracy; seconds are alike, so nobody beats who needs the least bytes."""
    sheet = ask(spread, x="bytes", measures=("loss", "seconds"))
    assert "loss against bytes: not beaten in both, by the means: 2; 1." in sheet.lines
    assert "seconds.total against bytes: not beaten in both, by the means: 2." in sheet.lines


def test_rows_that_are_alike_do_not_beat_each_other(tmp_path):
    for temperature in (1, 2):
        costing(tmp_path, 0.5, 100, method__temperature=temperature)
    assert "accuracy against bytes: not beaten in both, by the means: 1; 2." in ask(tmp_path, x="bytes").lines


def test_a_setting_is_a_row_key_and_the_order(tmp_path):
    three_temperatures(tmp_path)
    sheet = ask(tmp_path, x="method.temperature", by=("method.name",))
    assert heads(sheet)[:2] == ["method", "temperature"] and column(sheet, 1) == ["0.05", "1", "4"]
    assert ask(tmp_path, x="training.lr").rows[0][:2] == ("0.05", "0.01")
    assert ask(tmp_path, x="method.temperature", sort="accuracy").rows[0][0] == "0.05"
    assert heads(ask(tmp_path, x="method"))[:2] == ["temperature", "method"]


def test_what_was_searched_is_chosen_and_set_against_its_bytes(spread):
    for seed in (0, 1):
        costing(spread, 0.7, 9_000_000, seed, method__temperature=1, training__rounds=5)
    sheet = ask(spread, "method.temperature<4", best="accuracy", over=("training.rounds",), x="bytes")
    assert column(sheet, 0) == ["2", "3", "1"]
    with refuses():
        ask(spread, "method.temperature<4", best="accuracy", over=("training.rounds",), x="training.lr")


@pytest.mark.parametrize("name", ["byts", "nonsense"])
def test_what_is_neither_is_refused_in_a_line(spread, name):
    with refuses():
        ask(spread, x=name)


def test_units_suit_the_largest_and_files_have_bytes(spread):
    sheet = ask(spread, x="bytes", measures=("bytes_up", "client_flops", "bytes_per_round"))
    assert printed_rows(sheet)[0][2:] == ["1±0", "0.500±0.000", "6±0", "1±0"]
    assert "bytes (MB) | bytes\\_up (MB) | client\\_flops (MFLOP)" in sheet_markdown(sheet)
    assert "costs.bytes.mean" in sheet_csv(sheet).splitlines()[0] and "1000000.0" in sheet_csv(sheet).splitlines()[1]
    runs = ask(spread, "seed=0", "method.temperature=1", runs=True, measures=("bytes",))
    assert printed_rows(runs)[0][-1] == "4" and runs.rows[0][-1] == 4_000_000


def test_bytes_to_target_is_a_measure(tmp_path):
    costing(tmp_path, 0.5, 100, reached=1, method__temperature=1)
    costing(tmp_path, 0.5, 100, method__temperature=2)
    sheet = answer_of([f"--out={tmp_path}", "--measure=bytes_to_target", "--sort=bytes_to_target"])
    assert [row[2] and row[2].mean for row in sheet.rows] == [200.0, None]
    assert "1 of 2 finished runs have none (target not reached, or none set)" in text(sheet)
