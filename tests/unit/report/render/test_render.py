"""Tables in every form: values, marks, and names that cannot break out of their format."""

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knot_runner.report.render import text as texts
from knot_runner.report.render.markup import table_csv, table_latex, table_markdown, write_table
from knot_runner.report.render.table_model import ColumnGroup, TableCell
from knot_runner.report.render.terminal import TerminalTable
from knot_runner.report.statistics.intervals import mean_interval
from tests.golden.messages import refuses
from tests.unit.report.made_runs import build_table, shown

HOSTILE = "=cmd|' /C calc'!A0 \x1b[31mred\x1b[0m <script>x</script> a_b $x$ \\input{y} | [red]z[/red] 5% #&~^{}"


def rows_of(table):
    return list(csv.DictReader(io.StringIO(table_csv(table))))


def test_number_has_its_decimals_and_separators():
    for value, digits, text in (
        (0.4123, 3, "0.412"), (0.9996, 3, "1.000"), (1.2, 3, "1.200"), (0.0, 3, "0.000"), (0.5, 2, "0.50"),
        (-0.2, 2, "-0.20"), (0.04, 1, "0.0"), (13357, 0, "13,357"),
    ):  # fmt: skip
        assert texts.number(value, digits) == text


@pytest.mark.parametrize(("amount", "text"), [
    (340, "340 B"), (1000, "1 kB"), (12_400_000, "12.4 MB"), (999_900, "1 MB"), (999_400, "999 kB"), (0, "0 B"),
])  # fmt: skip
def test_quantity_has_three_digits_and_a_prefix(amount, text):
    assert texts.quantity(amount, "B") == text


def test_value_text_signs_all_but_rounded_zero():
    signed = ColumnGroup("delta", "delta", ("x",), 2, signed=True)
    found = [texts.cell_texts(TableCell(mean=mean), signed)[0] for mean in (0.5, -0.5, 0.0, 0.004, 2.2)]
    assert found == ["+0.50", "-0.50", "0.00", "0.00", "+2.20"]


@pytest.mark.parametrize(("values", "text"), [
    ((55.0, 73.0), "n=2: too few seeds (~3)"), ((1.0, -1.0), "n=2: too few seeds (>100)"), ((64.0, 64.1), ""),
    ((0.0, 0.0), ""), ((55.0, 73.0, -60.0), ""), ((55.0,), ""),
])  # fmt: skip
def test_difference_over_two_seeds_that_includes_0_names_the_seeds_that_decide(values, text):
    cell = TableCell(*mean_interval(values), len(values))
    groups = (ColumnGroup("delta", "delta", ("x",), 2, signed=sign) for sign in (True, False))
    signed, unsigned = (texts.cell_texts(cell, group)[1] for group in groups)
    assert signed == f" {text}" if text else signed == unsigned


def test_spelled_labels_show_differing_group_members():
    soup, late = "a=1, b.c={kind:soup,lr:0.01,start:0}", "a=2, b.c={kind:soup,lr:0.01,start:1}"
    assert texts.label_settings(soup) == {"a": "1", "b.c.kind": "soup", "b.c.lr": "0.01", "b.c.start": "0"}
    assert texts.spelled_labels([soup, late, soup]) == {soup: "a=1, b.c.start=0", late: "a=2, b.c.start=1"}
    assert texts.spelled_labels([soup])[soup] == "a=1, b.c.kind=soup, b.c.lr=0.01, b.c.start=0"
    as_typed = ["a=1, b=2", "a=1, b=3"], ["seed.x=2, y=[1,2]", "z={}, w={a:{b:1}}", ""]  # no group
    for labels in as_typed:
        assert texts.spelled_labels(labels) == {label: label for label in labels}
    assert texts.short_line("a.b=c/d.e, +f=1") == "b=c/d.e, +f=1"


@given(st.text())
def test_escapes_hold_for_any_text(text):
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", texts.plain(text))
    assert not re.search(r"(?<!\\)[<|`*_\[\]]", texts.escape_markdown(text))
    assert not re.search(r"(?<!\\)[&%$#_]", texts.escape_latex(text).replace(r"$\pm$", ""))
    assert texts.escape_csv(text)[:1] not in ("=", "+", "-", "@")


@pytest.fixture
def nli(full_grid):
    return build_table(full_grid("nli", 3), None, ["accuracy", "sd"], notes=["100% sure"])


def test_hostile_names_are_escaped_everywhere(factory):
    table = build_table([factory.made(names=[HOSTILE, "Food"], label=HOSTILE)], None, ["f1"], notes=[HOSTILE])
    terminal, markdown, latex = shown(TerminalTable(table)), table_markdown(table), table_latex(table)
    assert "\x1b" not in terminal + markdown + latex + table_csv(table)
    assert "<script>" not in markdown and "\\|" in markdown and "[red]" in terminal
    assert "\\input" not in latex and re.search(r"(?<!\\)[#%]", latex.split("\n", 1)[1]) is None
    rows = list(csv.reader(io.StringIO(table_csv(table))))
    assert all(not name.startswith(("=", "+", "-", "@")) for row in rows for name in row[:4])
    assert len({len(row) for row in rows}) == 1


def test_write_table_leaves_only_whole_files(nli, tmp_path):
    paths = write_table(nli, tmp_path / "new", "table4")
    assert [path.name for path in paths] == ["table4.md", "table4.csv", "table4.tex"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(path.name for path in paths)
    assert paths[1].read_text(encoding="utf-8") == table_csv(nli)


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "a/../b", "", ".hidden", "a b", "x\n"])
def test_write_table_refuses_invalid_file_name(factory, tmp_path, name):
    with refuses():
        write_table(build_table([factory.made()], None, ["f1"]), tmp_path, name)
