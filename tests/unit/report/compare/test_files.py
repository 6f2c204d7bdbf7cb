"""What ``compare`` prints and writes: widths, exact numbers, and escaped names."""

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knot_runner.cli.parsers import run_verb
from knot_runner.report.compare.files import (
    Column,
    TerminalSheet,
    exact_frame,
    form_of,
    sheet_csv,
    sheet_latex,
    sheet_markdown,
    write,
)
from knot_runner.report.statistics.intervals import Estimate, mean_estimate
from tests.golden.messages import refuses
from tests.unit.report.compared import begun, made, sheet_of
from tests.unit.report.made_runs import shown

HOSTILE = '=1+1 a|b_&% <i> $x$ \x1b[31m {y} \\ "q"'


finite = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12)
cells = st.one_of(st.none(), st.lists(finite, min_size=1, max_size=4).map(mean_estimate))
labels = st.one_of(st.none(), st.sampled_from(["4", "0.05", "a", "=b", "null", "1e-05", "a,b", 'c"d', "007"]))
rows = st.lists(st.tuples(labels, st.integers(0, 99), cells), max_size=6)
COLUMNS = (Column("method.x", "x", "key"), Column("n", "n", "count"), Column("metrics.f1.ALL", "f1", "measure", 3))


def read_csv(text):
    head, *lines = csv.reader(io.StringIO(text))
    return {name: [line[i] for line in lines] for i, name in enumerate(head)}


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(rows)
def test_sheet_csv_keeps_frame_numbers_exactly(found):
    sheet = sheet_of(COLUMNS, found, ("a line",))
    text, frame = read_csv(sheet_csv(sheet)), exact_frame(sheet).astype(object)
    exact = frame.where(frame.notna(), None).to_dict("list")
    assert list(text) == list(exact)
    for name in exact:
        for written, value in zip(text[name], exact[name], strict=True):
            if value is None:
                assert written == ""
            elif isinstance(value, str):
                assert written.removeprefix("'") == value
            else:
                assert type(value)(written) == value
    assert exact["metrics.f1.ALL.mean"] == [cell.mean if cell else None for _, _, cell in found]
    assert exact["n"] == [count for _, count, _ in found]


@pytest.mark.parametrize(("cells", "exact", "dtype"), [
    (("4", "0.05", None), [4.0, 0.05, None], "float64"), (("4", "0.05", "null"), ["4", "0.05", "null"], object),
    (("4", "2"), [4, 2], "Int64"), (("4", None), [4, None], "Int64"), ((None, None), [None, None], "float64"),
    ((), [], "float64"),
])  # fmt: skip
def test_column_of_a_frame_has_one_type(cells, exact, dtype):
    sheet = sheet_of(COLUMNS[:1], [(cell,) for cell in cells])
    found = exact_frame(sheet)["method.x"]
    assert found.dtype == dtype and found.astype(object).where(found.notna(), None).tolist() == exact
    assert sheet_csv(sheet).count("\n") == 1 + len(cells)


def test_hostile_names_are_escaped():
    sheet = sheet_of([Column(HOSTILE, HOSTILE, "key")], [(HOSTILE,)], [HOSTILE], HOSTILE)
    assert "\x1b" not in shown(TerminalSheet(sheet), 200)
    line = sheet_csv(sheet).splitlines()[1]
    assert line.startswith("\"'=1+1") and "\x1b" not in line
    markdown, latex = sheet_markdown(sheet), sheet_latex(sheet)
    assert "<i>" not in markdown and "\\|" in markdown and "\x1b" not in markdown
    assert markdown.splitlines()[4].replace("\\|", "").count("|") == 2
    assert "\\textbackslash{}" in latex and "\\&\\%" in latex and "\x1b" not in latex


def test_long_names_are_cut_in_print_alone():
    sheet = sheet_of(COLUMNS[:1], [("x" * 500,)])
    assert "x" * 41 not in shown(TerminalSheet(sheet), 80) + sheet_markdown(sheet) and "x" * 500 in sheet_csv(sheet)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_terminal_of_every_width_shows_every_number(width):
    keys = [Column(f"method.key{i}", f"key{i}", "key") for i in range(7)]
    measures = [Column(f"metrics.m{i}.ALL", f"measure{i}", "measure", 3) for i in range(6)]
    row = (*(f"value{i}" for i in range(7)), 3, *(Estimate(i + 0.125, 0.5, 3) for i in range(6)))
    sheet = sheet_of((*keys, Column("n", "n", "count"), *measures), [row])
    text = shown(TerminalSheet(sheet), width)
    assert max(map(len, text.splitlines())) <= width
    assert all(f"{i}.125±0.500" in text for i in range(6))
    assert all(f"value{i}" in text for i in range(7))


def test_mean_over_fewer_runs_has_their_number():
    rows = [("a", 3, Estimate(0.5, 0.01, 2)), ("b", 2, Estimate(0.5, None, 2)), ("c", 2, None)]
    sheet = sheet_of(COLUMNS, rows)
    lines = [line.split() for line in shown(TerminalSheet(sheet), 80).splitlines()]
    assert ["a", "3", "0.500±0.010", "(2)"] in lines and ["b", "2", "0.500"] in lines and ["c", "2", "-"] in lines


def test_compare_verb_prints_and_writes(tmp_path, capsys):
    for seed in range(2):
        made(tmp_path / "o", 0.5 + seed / 10, seed=seed)
    begun(tmp_path / "o", seed=2, method__temperature=4)
    names = [tmp_path / "new" / f"t.{ending}" for ending in ("csv", "md", "tex")]
    export = f"--export={','.join(map(str, names))}"
    assert run_verb("compare", [f"paths.output_dir={tmp_path / 'o'}", "task=mnist", export]) == 0
    printed = capsys.readouterr().out.replace("\n", "")
    assert "2 finished of 3 runs" in printed and all(str(name) in printed for name in names)
    found = read_csv(names[0].read_text())
    assert found["method.temperature"] == ["1", "4"] and found["metrics.accuracy.ALL.mean"] == ["0.55", ""]
    # 12.7062 * sqrt(.005 / 2) = .635 on either side of .55, and a share lies from 0 to 1
    assert (found["metrics.accuracy.ALL.low"][0], found["metrics.accuracy.ALL.high"][0]) == ("0.0", "1.0")
    assert found["unfinished"] == ["0", "1"]
    assert r"0.550 \[0, 1\]" in names[1].read_text() and "\\toprule" in names[2].read_text()
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(name.name for name in names)


def test_file_that_cannot_be_written_is_refused(tmp_path):
    sheet = sheet_of(COLUMNS, ())
    with refuses():
        write(sheet, tmp_path / ("x" * 300 + ".csv"))
    (tmp_path / "a.md").mkdir()
    with refuses():
        write(sheet, tmp_path / "a.md")
    with refuses():
        form_of(tmp_path / "a")
