"""``knot-runner compare``: prints a comparison of runs and exports it to files."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from knot_runner.report.compare.answer import compare_runs
from knot_runner.report.compare.files import form_of, write
from knot_runner.report.compare.settings import Filter, key_names, parse_filter
from knot_runner.report.frame import selected_runs
from knot_runner.report.render.table_model import ResultTable
from knot_runner.report.render.terminal import TerminalTable, output
from knot_runner.util.config_yaml import unquoted
from knot_runner.util.errors import UserError


def compare_command(options: argparse.Namespace) -> int:
    """Print and export a comparison of the runs that ``options`` select. Raises :class:`UserError`."""
    files = [Path(name).expanduser() for name in key_names(options.export)]
    for file in files:
        form_of(file)  # before anything is read
    table = answer_of(options)
    output().print(TerminalTable(table))
    for file in files:
        write(table, file)
        print(file)
    return 0


def answer_of(options: argparse.Namespace) -> ResultTable:
    """Return the comparison table that ``options`` request. Raises :class:`UserError`."""
    if options.over and not options.best:
        raise UserError("requires --best=MEASURE", "--over")
    by = options.by
    if by is not None:
        by = key_names(by)
    return compare_runs(
        selected_runs(*selection(options.words)),
        by=by,
        measures=key_names(options.measure),
        best=options.best,
        over=key_names(options.over),
        sort=options.sort,
    )


def selection(words: Sequence[str]) -> tuple[Path, list[Filter], str | None]:
    """Split ``words`` into the output folder, the filters and the data folder. Raises :class:`UserError`.

    If ``words`` contain no data folder, the last returned item is None.
    """
    out = "outputs"
    data = None
    filters = []
    for word in words:
        if word.startswith("paths.output_dir="):
            out = unquoted(word.removeprefix("paths.output_dir="))
        elif word.startswith("paths.data_dir="):
            data = unquoted(word.removeprefix("paths.data_dir="))
        else:
            filters.append(parse_filter(word))
    return Path(out).expanduser(), filters, data
