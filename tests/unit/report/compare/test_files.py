"""What ``compare`` prints and writes: widths, exact numbers, and escaped names."""

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knot_runner.cli.parsers import run_verb
from knot_runner.report.compare.files import comparison_csv, exact_frame
from knot_runner.report.render.markup import table_latex, table_markdown
from knot_runner.report.render.table_model import TableCell
from knot_runner.report.render.terminal import TerminalTable
from knot_runner.report.statistics.intervals import mean_estimate
from tests.unit.report.compared import ask, begun, made, table_of
from tests.unit.report.made_runs import shown

HOSTILE = '=1+1 a|b_&% <i> $x$ \x1b[31m {y} \\ "q"'


finite = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12)
cells = st.one_of(st.none(), st.lists(finite, min_size=1, max_size=4).map(mean_estimate))
labels = st.one_of(st.none(), st.sampled_from(["4", "0.05", "a", "=b", "null", "1e-05", "a,b", 'c"d', "007"]))
rows = st.lists(st.tuples(labels, st.integers(0, 99), cells), max_size=6)
F1 = "metrics.f1.ALL"


def read_csv(text):
    head, *lines = csv.reader(io.StringIO(text))
    return {name: [line[i] for line in lines] for i, name in enumerate(head)}


@settings(max_examples=25, deadline=None)
@given(rows)
def test_comparison_csv_keeps_frame_numbers_exactly(found):
    table = table_of(["method.x"], found, [F1], ["a line"])
    text, frame = read_csv(comparison_csv(table)), exact_frame(table).astype(object)
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
    table = table_of(["method.x"], [(cell, 1) for cell in cells])
    found = exact_frame(table)["method.x"]
    assert found.dtype == dtype and found.astype(object).where(found.notna(), None).tolist() == exact
    assert comparison_csv(table).count("\n") == 1 + len(cells)


def test_hostile_names_are_escaped():
    table = table_of([HOSTILE], [(HOSTILE, 1)], lines=[HOSTILE], title=HOSTILE)
    assert "\x1b" not in shown(TerminalTable(table), 200)
    line = comparison_csv(table).splitlines()[1]
    assert line.startswith("\"'=1+1") and "\x1b" not in line
    markdown, latex = table_markdown(table), table_latex(table)
    assert "<i>" not in markdown and "\\|" in markdown and "\x1b" not in markdown
    assert markdown.splitlines()[4].replace("\\|", "").count("|") == 3
    assert "\\textbackslash{}" in latex and "\\&\\%" in latex and "\x1b" not in latex


def test_long_names_are_cut_in_print_alone(tmp_path):
    for name in ("x" * 200, "y"):
        made(tmp_path, 0.5, method__name=name)
    table = ask(tmp_path)
    assert "x" * 41 not in shown(TerminalTable(table), 80) + table_markdown(table)
    assert "x" * 200 in comparison_csv(table)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_terminal_of_every_width_shows_every_number(width):
    keys, measures = [f"method.key{i}" for i in range(7)], [f"metrics.m{i}.ALL" for i in range(6)]
    estimates = (TableCell(i + 0.125, 0.5, 3, text=f"{i}.125±0.500") for i in range(6))
    table = table_of(keys, [(*(f"value{i}" for i in range(7)), 3, *estimates)], measures)
    text = shown(TerminalTable(table), width)
    assert max(map(len, text.splitlines())) <= width
    assert all(f"{i}.125±0.500" in text for i in range(6))
    assert all(f"value{i}" in text for i in range(7))


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
