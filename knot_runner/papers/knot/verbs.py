"""``knot-runner bound RUN...``: the generalization bound of KNOT's Theorem 5.2."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from knot_runner.cli.parsers import VERBS, Verb

if TYPE_CHECKING:
    from knot_runner.results import RunResult
    from knot_runner.util.files import Facts


def bound_command(options: argparse.Namespace) -> int:
    """Print the generalization bound of each run, and write the bound to the run's ``bound.json``.

    Raises:
        UserError: The bound of a run cannot be computed.
    """
    from knot_runner.cli.verbs.runs import runs_and_keys
    from knot_runner.papers.knot.bound_report import bound_table
    from knot_runner.records import BOUND_FILE, find_run, read_record, require_result, write_sealed
    from knot_runner.report.render.terminal import output

    runs, keys = runs_and_keys(options, ("paths.output_dir", "paths.data_dir"))
    for run in runs:
        folder = find_run(run, Path(keys.get("paths.output_dir", "outputs")).expanduser())
        result = require_result(folder)
        path = folder / BOUND_FILE
        if BOUND_FILE in result.digest:
            record = json.loads(read_record(folder, result, BOUND_FILE))
        else:
            record = _measured(folder, result, keys)
            write_sealed(path, record)
        output().print(bound_table(f"Generalization bound (KNOT Theorem 5.2) of {folder}", record))
        print(path)
    return 0


def _measured(folder: Path, result: RunResult, keys: dict[str, str]) -> Facts:
    from knot_runner.composing.job import job_of
    from knot_runner.papers.knot.bound import bound_of_run
    from knot_runner.pipelines.context import run_context
    from knot_runner.records import recorded_config

    config = recorded_config(folder)
    out = str(folder.resolve().parents[2])  # <out>/<task>/<method>/<run id>
    typed = {key.removeprefix("paths."): value for key, value in keys.items()}
    paths = {**config.get("paths", {}), "output_dir": out, **typed}
    context = run_context(job_of({**config, "paths": paths}), lambda *_: None, lambda _: None)
    return bound_of_run(dataclasses.replace(context, folder=folder, run_id=folder.name), result)


VERBS["bound"] = Verb(
    __name__,
    "compute the generalization bound of KNOT runs",
    "bound RUN ... [paths.output_dir=DIR] [paths.data_dir=DIR]",
    "Compute the generalization bound of KNOT's Theorem 5.2 for finished runs, named by folder or run id.",
    ["bound outputs/sa/sinkhorn_e/0123456789ab"],
    composes=False,
)
