"""Verbs on finished runs: ``knot-runner bound RUN...``, the generalization bound of KNOT's Theorem 5.2; ``bundle
RUN...``, which packs them into one archive for others to verify."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from knot_runner.cli.parsers import names_and_keys
from knot_runner.config.strict import digest
from knot_runner.records import BOUND_FILE, find_run, read_record, recorded_config, require_result, write_sealed
from knot_runner.results.base import RunResult
from knot_runner.util.errors import LOGGER, UserError
from knot_runner.util.files import Facts

ENDINGS = (".tar.gz", ".tgz")


def bound_command(options: argparse.Namespace) -> int:
    """Print each run's bound and write its ``bound.json``. Raises :class:`UserError`; of several runs, one without a
    bound only prints a line, and the exit code is 2."""
    runs, keys = _runs_and_keys(options, ("paths.output_dir", "paths.data_dir"))
    code = 0
    for run in runs:
        try:
            _show_bound(run, keys)
        except UserError as problem:
            if len(runs) == 1:
                raise
            LOGGER.error("%s", problem)
            code = 2
    return code


def _runs_and_keys(options: argparse.Namespace, known: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    runs, keys = names_and_keys(options.words, known)
    if not runs:
        raise UserError("needs a finished run: its folder, or its run id below paths.output_dir", "RUN")
    return runs, keys


def _show_bound(run: str, keys: dict[str, str]) -> None:
    from knot_runner.report.render.bound_view import bound_table
    from knot_runner.report.render.terminal import output

    folder = find_run(run, Path(keys.get("paths.output_dir", "outputs")).expanduser())
    result = require_result(folder)
    path, sealed = folder / BOUND_FILE, BOUND_FILE in result.digest
    record = json.loads(read_record(folder, result, BOUND_FILE)) if sealed else _measured(folder, result, keys)
    output().print(bound_table(f"Generalization bound (KNOT Theorem 5.2) of {folder}", record))
    if not sealed:
        write_sealed(path, record)
    print(path)


def _measured(folder: Path, result: RunResult, keys: dict[str, str]) -> Facts:
    from knot_runner.composing.job import job_of
    from knot_runner.pipelines.bound.measure import bound_of_run
    from knot_runner.pipelines.context import run_context

    config = recorded_config(folder)
    out = str(folder.resolve().parents[2])  # <out>/<task>/<method>/<run id>
    typed = {key.removeprefix("paths."): value for key, value in keys.items()}
    paths = {**config.get("paths", {}), "output_dir": out, **typed}
    context = run_context(job_of({**config, "paths": paths}), lambda *_: None, lambda _: None)
    return bound_of_run(dataclasses.replace(context, folder=folder, run_id=folder.name), result)


def bundle_command(options: argparse.Namespace) -> int:
    """Write the archive and print its content. Raises :class:`UserError`."""
    from knot_runner.bundles.pack import RunContents, contents_lines, finished_runs, packed_run, write_bundle
    from knot_runner.cli.show import folder_for
    from knot_runner.report.render.text import plain

    names, keys = _runs_and_keys(options, ("paths.output_dir",))
    if options.to is not None and not options.to.endswith(ENDINGS):
        raise UserError(f"expected a name that ends in {' or '.join(ENDINGS)}", f"--to={options.to}")
    out = Path(keys.get("paths.output_dir", "outputs")).expanduser()
    packed: dict[str, RunContents] = {}
    for name in names:
        found = finished_runs(find_run(name, out))
        if not found:
            raise UserError("holds no finished run (a folder with result.json)", name)
        for folder in found:
            one = packed_run(folder, options.weights)
            packed[one.run.folder] = one
    runs = [packed[name] for name in sorted(packed)]
    if options.to:
        to = Path(options.to).expanduser()
    else:
        ids = [Path(name).name for name in sorted(packed)]
        to = folder_for(out, "bundles") / f"{ids[0] if len(ids) == 1 else digest(ids, 12)}{ENDINGS[0]}"
    write_bundle(runs, to)
    for line in contents_lines(runs):
        print(plain(line))
    print(to)
    return 0
