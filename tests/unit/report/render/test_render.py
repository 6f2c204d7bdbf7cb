"""Tables in every form: values, marks, and names that cannot break out of their format."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from knot_runner.report.render.markup import table_csv, table_latex, table_markdown, write_table
from knot_runner.report.render.table_model import ColumnGroup, TableCell
from knot_runner.report.render.terminal import TerminalTable
from knot_runner.report.render.text import (
    escape_csv,
    escape_latex,
    escape_markdown,
    label_settings,
    number,
    plain,
    short_line,
    spelled_labels,
    value_text,
)
from knot_runner.report.tables.build import build_table
from tests.golden.messages import refuses

HOSTILE = "=cmd|' /C calc'!A0 \x1b[31mred\x1b[0m <script>x</script> a_b $x$ \\input{y} | [red]z[/red] 5% #&~^{}"


def shown(renderable: Any, width: int = 80, terminal: bool = False) -> str:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=terminal, color_system="standard" if terminal else None).print(
        renderable
    )
    return out.getvalue()


@pytest.fixture
def nli(full_grid: Any) -> Any:
    return build_table(full_grid("nli", 3), "knot/table4", ["accuracy", "sd"])


@pytest.mark.parametrize(("value", "digits", "text"), [
    (0.4123, 3, "0.412"), (0.9996, 3, "1.000"), (1.2, 3, "1.200"), (0.0, 3, "0.000"), (0.5, 2, "0.50"),
    (-0.2, 2, "-0.20"), (0.04, 1, "0.0"), (13357, 0, "13,357"),
])  # fmt: skip
def test_numbers(value: float, digits: int, text: str) -> None:
    assert number(value, digits) == text


@pytest.mark.parametrize("terminal", [False, True])
def test_the_widest_table_fits_80_columns(nli: Any, terminal: bool) -> None:
    text = shown(TerminalTable(nli), terminal=terminal)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert max(map(len, bare.splitlines())) <= 80
    assert "Sinkhorn-E" in bare and "0.490" in bare and "±0.050" in bare and "(0.60)" in bare
    assert "*" not in text and "\x1b[1m0" not in text  # no method is marked as the best


def test_terminal_shows_settings_under_the_method(factory: Any) -> None:
    table = build_table([factory.made(label="task.labels.support=onehot, method.loss.epsilon=0.1")], None, ["f1"])
    assert "support=onehot, epsilon=0.1" in shown(TerminalTable(table))
    assert short_line("a.b=c/d.e, +f=1") == "b=c/d.e, +f=1"


def test_groups_of_settings_are_shown_by_the_members_that_differ() -> None:
    soup, late = "a=1, b.c={kind:soup,lr:0.01,start:0}", "a=2, b.c={kind:soup,lr:0.01,start:1}"
    assert label_settings(soup) == {"a": "1", "b.c.kind": "soup", "b.c.lr": "0.01", "b.c.start": "0"}
    assert spelled_labels([soup, late, soup]) == {soup: "a=1, b.c.start=0", late: "a=2, b.c.start=1"}
    assert spelled_labels([soup])[soup] == "a=1, b.c.kind=soup, b.c.lr=0.01, b.c.start=0"
    first, second = "a=1, b=2", "a=1, b=3"
    assert spelled_labels([first, second]) == {first: first, second: second}  # no group: as they were typed
    plain_label, listed = "seed.x=2, y=[1,2]", "z={}, w={a:{b:1}}"
    assert spelled_labels([plain_label, listed, ""]) == {plain_label: plain_label, listed: listed, "": ""}


def test_diverged_prints_div_everywhere_and_nan_nowhere(factory: Any) -> None:
    jobs = [factory.made("entropy_a"), factory.made(status="diverged")]
    table = build_table(jobs, "knot/table3", ["f1"])
    for text in (shown(TerminalTable(table)), table_markdown(table), table_latex(table)):
        assert "div." in text and "nan" not in text.lower().replace("domin", "")
    row = next(r for r in csv.DictReader(io.StringIO(table_csv(table))) if r["method"] == "sinkhorn_e")
    assert (row["mean"], row["seeds"], row["diverged"]) == ("", "0", "1")


def test_markdown(factory: Any) -> None:
    jobs = [factory.made(method, base=base) for method, base in (("entropy_a", 0.3), ("sinkhorn_e", 0.4))]
    text = table_markdown(build_table(jobs, "knot/table3", ["f1"], notes=["one note"]))
    assert "| method | MELD | IEMOCAP | DyDa0 | DyDa1 | DyDa2 (global) | ALL |" in text
    assert "| Sinkhorn-E | 0.400 (0.38) |" in text and "| Entropy-A | 0.300 (0.28) |" in text
    assert text.endswith("- one note\n")
    grid = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in grid}) == 1


def test_csv_is_long_and_exact(factory: Any) -> None:
    jobs = [factory.made(seed=seed, base=base) for seed, base in enumerate((0.38, 0.40, 0.42))]
    rows = list(csv.DictReader(io.StringIO(table_csv(build_table(jobs, "knot/table3", ["f1", "sd"])))))
    assert len(rows) == 2 * 6
    first = rows[0]
    assert (first["method"], first["column"], first["metric"]) == ("sinkhorn_e", "MELD", "f1")
    assert [first[k] for k in ("mean", "low", "high")] == ["0.4", "0.350317", "0.449683"]
    assert [first[k] for k in ("seeds", "planned", "diverged", "paper", "gap")] == ["3", "3", "0", "0.38", "0.02"]


def test_csv_of_locals(factory: Any) -> None:
    rows = list(
        csv.DictReader(io.StringIO(table_csv(build_table([factory.made()], "knot/table1", ["f1"], kind="locals"))))
    )
    assert [row["column"] for row in rows[:4]] == ["train", "valid", "test", "score"]
    assert (rows[0]["data set"], rows[0]["mean"], rows[0]["paper"]) == ("IEMOCAP", "1000", "3354")


def test_latex(nli: Any) -> None:
    text = table_latex(dataclasses.replace(nli, lines=("100% sure",)))
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2
    assert text.count(r"\toprule") == text.count(r"\midrule") == text.count(r"\bottomrule") == 2
    assert r"& 0.490{\scriptsize\,$\pm$0.050} {\scriptsize (0.60)}" in text and "textbf" not in text
    assert r"100\% sure" in text
    assert all(line.count("&") == 7 for line in text.splitlines() if line.startswith(("method", "Sinkhorn", "Entropy")))


def test_hostile_names_are_escaped_everywhere(factory: Any) -> None:
    table = build_table([factory.made(names=[HOSTILE, "Food"], label=HOSTILE)], None, ["f1"], notes=[HOSTILE])
    terminal, markdown, latex = shown(TerminalTable(table)), table_markdown(table), table_latex(table)
    for text in (terminal, markdown, latex, table_csv(table)):
        assert "\x1b" not in text
    assert "<script>" not in markdown and "\\|" in markdown
    assert "[red]" in terminal
    assert "\\input" not in latex and re.search(r"(?<!\\)[#%]", latex.split("\n", 1)[1]) is None
    rows = list(csv.reader(io.StringIO(table_csv(table))))
    assert all(not name.startswith(("=", "+", "-", "@")) for row in rows for name in row[:4])
    assert len({len(row) for row in rows}) == 1


@given(st.text())
def test_escapes_hold_for_any_text(text: str) -> None:
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", plain(text))
    assert not re.search(r"(?<!\\)[<|`*_\[\]]", escape_markdown(text))
    assert not re.search(r"(?<!\\)[&%$#_]", escape_latex(text).replace(r"$\pm$", ""))
    assert escape_csv(text)[:1] not in ("=", "+", "-", "@")


def test_files_are_written_whole_and_leave_nothing_else(nli: Any, tmp_path: Path) -> None:
    paths = write_table(nli, tmp_path / "new", "table4")
    assert [path.name for path in paths] == ["table4.md", "table4.csv", "table4.tex"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(path.name for path in paths)
    assert paths[1].read_text(encoding="utf-8") == table_csv(nli)


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "a/../b", "", ".hidden", "a b", "x\n"])
def test_a_name_is_a_file_name(nli: Any, tmp_path: Path, name: str) -> None:
    with refuses():
        write_table(nli, tmp_path, name)


@pytest.fixture
def chilled(federated: Any) -> Any:
    """Three temperatures and a rate control of two cases over two seeds; one seed of T=2 does not reach the target."""
    rows = {(4.0, False): 0.7, (2.0, False): 0.6, (1.0, False): 0.75, (0.05, False): 0.9, (0.05, True): 0.8}
    jobs = [
        federated.made(t, [0.2, 0.3, top if seed else 0.7], seed=seed, control=control, task=task, model=model)
        for task, model in (("femnist", ("femnist_dnn", "mlp")), ("cifar100", ("resnet18", "resnet")))
        for (t, control), top in rows.items()
        for seed in (0, 1)
    ]
    metrics = ["accuracy", "delta", "loss", "plain_loss", "rounds", "speedup"]
    return build_table(jobs, "chill/table1", metrics, kind="temperatures", notes=["100% sure"])


@pytest.mark.parametrize("terminal", [False, True])
def test_a_table_of_temperatures_fits_80_columns(chilled: Any, terminal: bool) -> None:
    bare = re.sub(r"\x1b\[[0-9;]*m", "", shown(TerminalTable(chilled), terminal=terminal))
    assert max(map(len, bare.splitlines())) <= 80
    for text in ("FEMNIST-DNN", "CIFAR100-ResNet18", "rate=lr/0.05", ">3 (1 of 2)", "(-2.72)", "(299)", "vs T=1"):
        assert text in bare
    assert "+7.50" in bare and "nan" not in bare


def test_blocks_of_temperatures_look_alike(chilled: Any) -> None:
    narrow, wide = shown(TerminalTable(chilled), width=80), shown(TerminalTable(chilled), width=140)
    for text, lines in ((narrow, 3), (wide, 2)):  # mean, interval and paper below each other, or the first two together
        blocks = text.split("CIFAR100-ResNet18\n")
        found = [block[block.index("\n4 ") + 1 : block.index("\n2 ")].count("\n") for block in blocks[:2]]
        assert found == [lines - 1] * 2


def test_temperatures_in_markdown_csv_and_latex(chilled: Any) -> None:
    markdown, latex = table_markdown(chilled), table_latex(chilled)
    assert "**FEMNIST-DNN**" in markdown and "| T | settings | accuracy | vs T=1 |" in markdown
    assert "| 1 | rate=lr/0.05 |" in markdown and "&gt;3 (1 of 2) (205)" in markdown
    assert latex.count(r"\begin{tabular}{llrrrrrr}") == 2 and r"\textgreater{}3 (1 of 2)" in latex
    assert r"100\% sure" in latex and "FLex\\&Chill" in latex
    rows = list(csv.DictReader(io.StringIO(table_csv(chilled))))
    assert len(rows) == 5 * 6 * 2 and {row["metric"] for row in rows} == {
        "accuracy_percent", "delta_points", "loss", "plain_loss", "rounds", "speedup"
    }  # fmt: skip
    control = next(r for r in rows if r["settings"] == "rate=lr/0.05" and r["metric"] == "accuracy_percent")
    assert (control["T"], control["column"], control["mean"], control["paper"]) == ("1", "FEMNIST-DNN", "75", "")
    beyond = next(r for r in rows if r["T"] == "2" and r["metric"] == "rounds")
    assert (beyond["mean"], beyond["seeds"], beyond["planned"], beyond["gap"]) == ("3", "1", "2", "")


def test_an_accuracy_below_one_percent_has_its_sign() -> None:
    signed = ColumnGroup("delta", "delta", ("x",), 2, signed=True)
    texts = [value_text(TableCell(mean=mean), signed) for mean in (0.5, -0.5, 0.0, 0.004, 2.2)]
    assert texts == ["+0.50", "-0.50", "0.00", "0.00", "+2.20"]
