"""``knot-runner bound RUN...``: the generalisation bound of KNOT's Theorem 5.2 for finished runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from knot_runner.util.errors import UserError, nearest
from knot_runner.util.messages import LOGGER

BOUND_HELP = """\
knot-runner bound RUN... [key=value]: the generalisation bound of KNOT's Theorem 5.2 for finished runs

  RUN                  a run's folder, or its run id below paths.out
  paths.out=DIR        where runs named by their id are (default: outputs), and the stages that they share
  paths.data=DIR       the data that the runs were made from, where they are not where they were

Three forms: as printed, as the paper's lemmas give it, and a sharper one of ours; and bounds on held-out texts. The
record is bound.json in the run's folder. A run with method.bound=true has it from the beginning.

  knot-runner bound outputs/sa/sinkhorn_e/0123456789ab"""
BOUND_KEYS = ("paths.out", "paths.data")


def bound_command(arguments: list[str]) -> int:
    """Print each run's bound and write its ``bound.json``. Raises :class:`UserError`; of several runs, one without a
    bound only prints a line, and the exit code is 2."""
    words = [word for word in arguments if "=" not in word]
    keys = _keys([word for word in arguments if "=" in word])
    flag = next((word for word in words if word.startswith("-")), None)
    if flag:
        raise UserError(f"{flag}: there is no such flag; bound takes runs, paths.out=DIR and paths.data=DIR")
    if not words:
        raise UserError("bound: needs a finished run: its folder, or its run id below paths.out")
    code = 0
    for word in words:
        try:
            _show(word, keys)
        except UserError as problem:
            if len(words) == 1:
                raise
            LOGGER.error("%s", problem)
            code = 2
    return code


def _show(word: str, keys: dict[str, str]) -> None:
    from knot_runner.records import BOUND_FILE, find_run, write_sealed
    from knot_runner.report.render.bound_view import BoundTable
    from knot_runner.report.render.terminal import output

    folder = find_run(word, Path(keys.get("paths.out", "outputs")).expanduser())
    record, sealed = _record(folder, keys)
    output().print(BoundTable(f"Generalisation bound (KNOT Theorem 5.2) of {folder}", record))
    if not sealed:
        write_sealed(folder / BOUND_FILE, record)
    print(folder / BOUND_FILE)


def _keys(words: Sequence[str]) -> dict[str, str]:
    found = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in BOUND_KEYS:
            raise UserError(f"{key}: bound takes {' and '.join(BOUND_KEYS)}{nearest(key, BOUND_KEYS)}")
        if not value:
            raise UserError(f"{key}: needs a folder, {key}=DIR")
        found[key] = value
    return found


def _record(folder: Path, keys: dict[str, str]) -> tuple[dict[str, Any], bool]:
    """(The run's bound, whether its result already seals it). Raises :class:`UserError`."""
    from knot_runner.records import BOUND_FILE, is_sealed, read_record, read_result

    result = read_result(folder)
    if result is None:
        raise UserError(f"{folder}: is no finished run: it has no result.json, or one that is damaged")
    if is_sealed(result) and BOUND_FILE in result["digest"]:
        return json.loads(read_record(folder, result, BOUND_FILE)), True
    return _measured(folder, result, keys), False


def _measured(folder: Path, result: dict[str, Any], keys: dict[str, str]) -> dict[str, Any]:
    from knot_runner.composing.job import job_of
    from knot_runner.pipelines.bound.measure import bound_of_run
    from knot_runner.pipelines.context import run_context
    from knot_runner.records import recorded_config

    config = recorded_config(folder)
    paths = {**config.get("paths", {}), "out": keys.get("paths.out", str(_out_of(folder)))}
    if "paths.data" in keys:
        paths["data"] = keys["paths.data"]
    context = run_context(job_of({**config, "paths": paths}), lambda *_: None, lambda _: None)
    return bound_of_run(dataclasses.replace(context, folder=folder, run_id=folder.name), result)


def _out_of(folder: Path) -> Path:
    """``paths.out`` of a run in its original place, ``<out>/<task>/<method>/<run id>``."""
    above = folder.resolve().parents
    return above[min(2, len(above) - 1)]
