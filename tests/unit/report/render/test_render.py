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
from knot_runner.report.tables.build import build_table
from tests.golden.messages import refuses
from tests.unit.report.made_runs import shown

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
    found = [texts.value_text(TableCell(mean=mean), signed) for mean in (0.5, -0.5, 0.0, 0.004, 2.2)]
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
    return build_table(full_grid("nli", 3), "knot/table4", ["accuracy", "sd"], notes=["100% sure"])


@pytest.mark.parametrize("colors", [None, "standard"])
def test_widest_table_fits_80_columns(nli, colors):
    text = shown(TerminalTable(nli), color_system=colors)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert max(map(len, bare.splitlines())) <= 80
    assert all(part in bare for part in ("Sinkhorn-E", "0.490", "±0.050", "(0.60)"))
    assert "*" not in text and "\x1b[1m0" not in text  # no method is marked as the best


def test_table_of_methods_in_every_form(nli):
    markdown, latex, rows = table_markdown(nli), table_latex(nli), rows_of(nli)
    assert "| method | Fic | Gov | Slate | Tele | Trv | SNLI (global) | ALL |" in markdown
    assert "| Sinkhorn-E | 0.490±0.050 (0.60) |" in markdown and markdown.endswith("- 100% sure\n")
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 2
    assert latex.count(r"\toprule") == latex.count(r"\midrule") == latex.count(r"\bottomrule") == 2
    assert r"& 0.490{\scriptsize\,$\pm$0.050} {\scriptsize (0.60)}" in latex and "textbf" not in latex
    for text, mark, count in ((markdown, "|", 9), (latex, "&", 7)):
        grid = [line for line in text.splitlines() if re.search(r"^\W*(method|Sinkhorn|Entropy)", line)]
        assert {line.count(mark) for line in grid} == {count}
    assert r"100\% sure" in latex and len(rows) == 8 * 2 * 7
    last = next(row for row in rows if row["method"] == "sinkhorn_e")
    keys = ("column", "metric", "mean", "low", "high", "seeds", "planned", "diverged", "paper", "gap")
    assert " ".join(last[key] for key in keys) == "Fic accuracy 0.49 0.440317 0.539683 3 3 0 0.6 -0.11"


def test_diverged_run_shows_div_and_never_nan(factory):
    table = build_table([factory.made("entropy_a"), factory.made(status="diverged")], "knot/table3", ["f1"])
    for text in (shown(TerminalTable(table)), table_markdown(table), table_latex(table)):
        assert "div." in text and "nan" not in text.lower().replace("domin", "")
    row = next(row for row in rows_of(table) if row["method"] == "sinkhorn_e")
    assert (row["mean"], row["seeds"], row["diverged"]) == ("", "0", "1")


def test_locals_csv_has_one_row_per_column(factory):
    rows = rows_of(build_table([factory.made()], "knot/table1", ["f1"], kind="locals"))
    assert [row["column"] for row in rows[:4]] == ["train", "valid", "test", "score"]
    assert (rows[0]["data set"], rows[0]["mean"], rows[0]["paper"]) == ("IEMOCAP", "1000", "3354")


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


@pytest.fixture
def chilled(federated):
    """Four temperatures and a rate control of two cases over three seeds; two seeds of T=2 do not reach the target."""
    rows = {(4.0, False): 0.7, (2.0, False): 0.6, (1.0, False): 0.75, (0.05, False): 0.9, (0.05, True): 0.8}
    jobs = [
        federated.made(t, [0.2, 0.3, top if seed else 0.7], seed=seed, control=control, task=task, model=model)
        for task, model in (("femnist", ("femnist_dnn", "mlp")), ("cifar100", ("resnet18", "resnet")))
        for (t, control), top in rows.items()
        for seed in (0, 1, 2)
    ]
    metrics = ["accuracy", "delta", "loss", "plain_loss", "rounds", "speedup"]
    return build_table(jobs, "chill/table1", metrics, kind="temperatures")


@pytest.mark.parametrize(("width", "lines"), [(80, 3), (140, 2)])
def test_blocks_of_temperatures_fit_and_look_alike(chilled, width, lines):
    """Mean, interval and paper stand below each other, or the first two together."""
    text = shown(TerminalTable(chilled), width)
    assert max(map(len, text.splitlines())) <= width
    blocks = text.split("CIFAR100-ResNet18\n")[:2]
    assert [block[block.index("\n4 ") + 1 : block.index("\n2 ")].count("\n") for block in blocks] == [lines - 1] * 2
    for part in ("FEMNIST-DNN", "rate=lr/0.05", ">3 (2 of 3)", "(-2.72)", "(299)", "vs T=1", "+10.00"):
        assert part in text
    assert "nan" not in text


def test_table_of_temperatures_in_every_form(chilled):
    markdown, latex, rows = table_markdown(chilled), table_latex(chilled), rows_of(chilled)
    assert "**FEMNIST-DNN**" in markdown and "| T | settings | accuracy | vs T=1 |" in markdown
    assert "| 1 | rate=lr/0.05 |" in markdown and "&gt;3 (2 of 3) (205)" in markdown
    assert latex.count(r"\begin{tabular}{llrrrrrr}") == 2 and r"\textgreater{}3 (2 of 3)" in latex
    assert len(rows) == 5 * 6 * 2
    control = next(row for row in rows if row["settings"] == "rate=lr/0.05" and row["metric"] == "accuracy_percent")
    assert (control["T"], control["column"], control["mean"], control["paper"]) == ("1", "FEMNIST-DNN", "76.666667", "")
    beyond = next(row for row in rows if row["T"] == "2" and row["metric"] == "rounds")
    assert (beyond["mean"], beyond["seeds"], beyond["planned"], beyond["gap"]) == ("3", "1", "3", "")
