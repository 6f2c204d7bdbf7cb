"""Tables of methods, grids, gains and local models, by hand."""

import csv
import io
import re

import pytest

from knot_runner.report.render.markup import table_csv, table_latex, table_markdown
from knot_runner.report.render.table_model import METHOD_TITLES, display
from knot_runner.report.render.terminal import TerminalTable
from tests.golden.messages import refuses
from tests.unit.report.made_runs import build_table, shown


def rows_of(table):
    return list(csv.DictReader(io.StringIO(table_csv(table))))


@pytest.fixture
def nli(full_grid):
    return build_table(full_grid("nli", 3), "knot/table4", ["accuracy", "sd"], notes=["100% sure"])


def cell(table, row, group, column):
    """The cell of a row by its first key, or of a data set by its last."""
    found = next(r for r in table.rows if row in (r.keys[0], r.keys[-1]))
    columns = next(g for g in table.groups if g.key == group).columns
    return found.cells[group][columns.index(column)]


def test_methods_table_follows_paper_order(full_grid):
    table = build_table(list(reversed(full_grid("sa", 1))), "knot/table2", ["f1", "sd"])
    assert [row.keys[0] for row in table.rows] == list(METHOD_TITLES)
    assert [row.heads[0] for row in table.rows][::7] == ["Entropy-A", "Sinkhorn-E"]
    assert [g.key for g in table.groups] == ["f1", "sd"]
    first = table.groups[0]
    assert (first.columns, first.of_global) == (("Cloths", "Toys", "Cell", "Food", "ALL"), ("Food",))


def test_cell_has_mean_interval_paper_and_gap(factory):
    jobs = [factory.made(seed=seed, base=base) for seed, base in enumerate((0.38, 0.40, 0.42))]
    three, one = (
        cell(build_table(some, "knot/table3", ["f1"]), "sinkhorn_e", "f1", "MELD") for some in (jobs, jobs[1:2])
    )
    assert (three.mean, three.n, three.planned) == (pytest.approx(0.40), 3, 3)
    assert three.half == pytest.approx(0.049683, abs=1e-6)
    assert three.paper == 0.38 and three.gap == pytest.approx(0.02)
    assert (one.mean, one.half, one.n) == (0.4, None, 1)


def test_missing_runs_are_counted_and_named(factory):
    jobs = [factory.made(seed=0), factory.job(seed=1), factory.made(seed=2, status="diverged"), factory.job(seed=3)]
    jobs.append(factory.made(seed=4))
    (jobs[-1].folder / "result.json").write_text("{")
    table = build_table(jobs, "knot/table3", ["f1"])
    found = cell(table, "sinkhorn_e", "f1", "MELD")
    assert (found.mean, found.n, found.planned, found.diverged) == (0.4, 1, 5, 1)
    text = "\n".join(table.lines)
    assert "Sinkhorn-E: 1 of 5 runs are finished (seed 1, 3 not run yet; seed 2 diverged; seed 4 damaged)." in text
    assert f"Not counted: {jobs[-1].folder / 'result.json'}: cannot be read" in text


def test_methods_table_omits_overall_gap_for_other_datasets(factory):
    names = ["MELD", "DyDa0", "DyDa1", "DyDa2"]
    table = build_table([factory.made(names=names)], "knot/table3", ["f1", "sd"])
    absent, joined = cell(table, "sinkhorn_e", "f1", "IEMOCAP"), cell(table, "sinkhorn_e", "f1", "ALL")
    assert (absent.mean, absent.n, absent.paper) == (None, 0, 0.33)
    assert joined.paper == 0.41 and joined.gap is None
    assert any(
        line.startswith("No run has IEMOCAP. ALL is the mean over MELD, DyDa0, DyDa1, DyDa2") for line in table.lines
    )
    unlike = build_table([factory.made(seed=0), factory.made(seed=1, names=names)], "knot/table3", ["f1"])
    assert cell(unlike, "sinkhorn_e", "f1", "IEMOCAP").n == 1
    assert "The runs have different data sets, so ALL is not comparable." in unlike.lines


def test_generated_text_has_no_gap(factory):
    table = build_table([factory.made(source="embedded")], "knot/table3", ["f1"])
    assert all(found.gap is None for row in table.rows for found in row.cells["f1"])
    assert any("embedded" in line for line in table.lines)


def test_rows_split_by_setting_and_grid_shows_all(factory):
    labels = [f"training.distill.batch_size={size}" for size in (16, 32)]
    jobs = [factory.made(label=label, base=base) for label, base in zip(labels, (0.3, 0.4), strict=True)]
    table, grid = build_table(jobs, "knot/table3", ["f1"]), build_table(jobs, None, ["f1", "sd"], kind="grid")
    assert table.heads == ["method", "settings"]
    assert [row.keys for row in table.rows] == [("sinkhorn_e", label) for label in labels]
    assert len(grid.blocks()) == 1 and [group.columns for group in grid.groups] == [("ALL",), ("ALL",)]
    assert [row.keys[1] for row in grid.rows] == labels
    assert cell(grid, labels[1], "f1", "ALL").mean == pytest.approx(0.45)


def test_methods_table_refuses_duplicate_row_and_seed(factory):
    first = factory.made()
    second = type(first)("other", first.folder, first.task, first.method, first.seed)
    with pytest.raises(ValueError, match="share 'sinkhorn_e'"):
        build_table([first, second], None, ["f1"])


def test_columns_without_a_paper_are_those_measured(factory):
    table = build_table([factory.made("other_method", names=["A", "B"])], None, ["f1"])
    assert table.groups[0].columns == ("A", "B", "ALL") and table.title == "erc: methods"
    assert table.rows[0].heads == ("other_method",) and display("other_method") == "other_method"


@pytest.mark.parametrize(("paper", "metrics"), [
    ("knot/table2", ["f1"]), ("knot_table9", ["f1"]), ("knot/bias", ["f1"]), ("knot/table3", ["f2"]),
])  # fmt: skip
def test_request_that_fits_no_table_is_refused(factory, paper, metrics):
    with refuses():
        build_table([factory.made()], paper, metrics)


def test_locals_are_beside_table_1(factory):
    methods = ("entropy_a", "sinkhorn_e")  # whose local models of a seed are the same, and count once
    jobs = [factory.made(m, seed, task) for task in ("erc", "sa", "nli") for m in methods for seed in (0, 1)]
    table = build_table(jobs, "knot/table1", ["f1"], kind="locals")
    assert [row.keys[0] for row in table.rows] == ["sa"] * 5 + ["erc"] * 6 + ["nli"] * 7
    train, score = cell(table, "Cell", "sizes", "train"), cell(table, "Cell", "score", "score")
    assert (train.mean, train.paper, train.half) == (1000, 133574, 0)
    assert (score.mean, score.n, score.planned, score.paper) == (0.5, 2, 2, 0.49)
    assert cell(table, "DyDa1", "score", "score").paper == 0.34
    assert cell(table, "DyDa3", "score", "score").mean is None
    assert cell(table, "Fic", "score", "score").mean == 0.6  # of inference, the accuracy
    assert any("dropped digit" in line for line in table.lines)


def gains_of(jobs, metric="f1"):
    """The table of gains over Entropy-A, and its cells by keys of the row."""
    table = build_table(jobs, None, [metric], kind="gains", reference="entropy_a")
    return table, {row.keys: {name: cells[0] for name, cells in row.cells.items()} for row in table.rows}


def test_gains_are_paired_by_seed(factory):
    jobs = [
        *(factory.made("entropy_a", seed, base=base) for seed, base in ((0, 0.3), (1, 0.5), (3, 0.8))),
        *(factory.made("sinkhorn_e", seed, base=base) for seed, base in ((1, 0.58), (0, 0.34), (2, 0.1))),
    ]
    table, cells = gains_of(jobs)
    gain = cells["sinkhorn_e",]["gain"]
    assert gain.mean == pytest.approx((4 + 8) / 2) and gain.n == 2  # seed 2 and 3 have no pair
    assert cells["entropy_a",]["gain"].mean is None
    group = next(one for one in table.groups if one.key == "gain")
    assert group.signed and "less that of entropy_a at the same seed, in points" in group.title


def test_gains_use_reference_with_same_label(factory):
    places = [("entropy_a", "a", 0.3), ("entropy_a", "b", 0.4), ("sinkhorn_e", "a", 0.5), ("sinkhorn_e", "b", 0.5)]
    _, cells = gains_of([factory.made(method, 0, label=label, base=base) for method, label, base in places])
    assert [cells["sinkhorn_e", label]["gain"].mean for label in "ab"] == pytest.approx([20, 10])


@pytest.mark.parametrize(("metric", "best"), [("f1", 0.8), ("sd", 0.2)])
def test_gains_compare_with_best_teacher_without_ensemble(factory, metric, best):
    values = {"teacher 1": (0.6, 0.4), "teacher 2": (0.8, 0.2), "ensemble": (0.99, 0.01)}
    baselines = {name: {"f1": f1, "sd": sd} for name, (f1, sd) in values.items()}
    _, cells = gains_of([factory.made("entropy_a"), factory.made("sinkhorn_e", baselines=baselines)], metric)
    assert cells["sinkhorn_e",]["teacher"].mean == pytest.approx(best)
    assert cells["entropy_a",]["teacher"].mean is None


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


@pytest.mark.parametrize("colors", [None, "standard"])
def test_widest_table_fits_80_columns(nli, colors):
    text = shown(TerminalTable(nli), color_system=colors)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert max(map(len, bare.splitlines())) <= 80
    assert all(part in bare for part in ("Sinkhorn-E", "0.490", "±0.050", "(0.60)"))
    assert "*" not in text and "\x1b[1m0" not in text  # no method is marked as the best
