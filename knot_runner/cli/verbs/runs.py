"""Verbs on finished runs: ``knot-runner bound RUN...``, the generalisation bound of KNOT's Theorem 5.2; ``bundle
RUN...``, which packs them into one archive for others to verify."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from knot_runner.config.strict import digest
from knot_runner.records import (
    BOUND_FILE,
    find_run,
    read_record,
    recorded_config,
    require_result,
    write_sealed,
)
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
    keys = _bound_keys([word for word in arguments if "=" in word])
    flag = next((word for word in words if word.startswith("-")), None)
    if flag:
        raise UserError(f"{flag}: there is no such flag; bound takes runs, paths.out=DIR and paths.data=DIR")
    if not words:
        raise UserError("bound: needs a finished run: its folder, or its run id below paths.out")
    code = 0
    for word in words:
        try:
            _show_bound(word, keys)
        except UserError as problem:
            if len(words) == 1:
                raise
            LOGGER.error("%s", problem)
            code = 2
    return code


def _show_bound(word: str, keys: dict[str, str]) -> None:
    from knot_runner.report.render.bound_view import bound_table
    from knot_runner.report.render.terminal import output

    folder = find_run(word, Path(keys.get("paths.out", "outputs")).expanduser())
    record, sealed = _bound_of(folder, keys)
    output().print(bound_table(f"Generalisation bound (KNOT Theorem 5.2) of {folder}", record))
    if not sealed:
        write_sealed(folder / BOUND_FILE, record)
    print(folder / BOUND_FILE)


def _bound_keys(words: Sequence[str]) -> dict[str, str]:
    found = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in BOUND_KEYS:
            raise UserError(f"{key}: bound takes {' and '.join(BOUND_KEYS)}{nearest(key, BOUND_KEYS)}")
        if not value:
            raise UserError(f"{key}: needs a folder, {key}=DIR")
        found[key] = value
    return found


def _bound_of(folder: Path, keys: dict[str, str]) -> tuple[dict[str, Any], bool]:
    """(The run's bound, whether its result already seals it). Raises :class:`UserError`."""
    result = require_result(folder)
    if BOUND_FILE in result["digest"]:
        return json.loads(read_record(folder, result, BOUND_FILE)), True
    return _measured(folder, result, keys), False


def _measured(folder: Path, result: dict[str, Any], keys: dict[str, str]) -> dict[str, Any]:
    from knot_runner.composing.job import job_of
    from knot_runner.pipelines.bound.measure import bound_of_run
    from knot_runner.pipelines.context import run_context

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


BUNDLE_HELP = """\
knot-runner bundle RUN... [--to=FILE] [--weights] [paths.out=DIR]: finished runs in one archive, for others to verify

  RUN                  a run's folder, a folder above several, or a run id below paths.out
  --to=FILE            the archive, FILE.tar.gz (default: below <paths.out>/bundles)
  --weights            also files above 4 MB, weights as a rule; their digests are compared without
  paths.out=DIR        where runs named by their id are (default: outputs)

Of each run: config.yaml as composed, result.json (metrics, seed, digests of all data read, versions of code and
libraries), rounds.jsonl and the run's other sealed records. The same runs give the same bytes. config.yaml names the
folders paths.data and paths.out as they were called on this machine.

  knot-runner bundle outputs/femnist --to=femnist.tar.gz"""
BUNDLE_FLAGS = ("--to=FILE", "--weights")
OUT_KEY = "paths.out"
ENDINGS = (".tar.gz", ".tgz")


def bundle_command(arguments: list[str]) -> int:
    """Write the archive and print its content. Raises :class:`UserError`."""
    words = [word for word in arguments if not word.startswith("-") and "=" not in word]
    flags = [word for word in arguments if word.startswith("-")]
    keys = [word for word in arguments if not word.startswith("-") and "=" in word]
    for flag in flags:
        if flag != "--weights" and not flag.startswith("--to="):
            raise UserError(f"{flag}: there is no such flag of bundle{nearest(flag, BUNDLE_FLAGS)}")
    for key in keys:
        if not key.startswith(f"{OUT_KEY}=") or key == f"{OUT_KEY}=":
            raise UserError(f"{key}: bundle takes runs, paths.out=DIR, --to=FILE and --weights")
    if not words:
        raise UserError("bundle: needs a finished run: its folder, or its run id below paths.out")
    out = Path(keys[-1].partition("=")[2] if keys else "outputs").expanduser()
    to = next((flag.partition("=")[2] for flag in reversed(flags) if flag.startswith("--to=")), None)
    if to is not None and (not to.endswith(ENDINGS) or "\0" in to):
        raise UserError(f"--to: {to or 'is empty'}: a bundle's name ends in {' or '.join(ENDINGS)}")
    return _written(words, out, Path(to).expanduser() if to else None, "--weights" in flags)


def _written(words: list[str], out: Path, to: Path | None, weights: bool) -> int:
    from knot_runner.bundles.pack import RunContents, contents_lines, finished_runs, packed_run, write_bundle
    from knot_runner.cli.show import folder_for
    from knot_runner.report.render.text import plain

    packed: dict[str, RunContents] = {}
    for word in words:
        found = finished_runs(find_run(word, out))
        if not found:
            raise UserError(f"{word}: holds no finished run (a folder with result.json)")
        for folder in found:
            one = packed_run(folder, weights)
            packed[one.run.folder] = one
    runs = [packed[name] for name in sorted(packed)]
    to = to or folder_for(out, "bundles") / f"{_name(sorted(packed))}.tar.gz"
    write_bundle(runs, to)
    for line in contents_lines(runs):
        print(plain(line))
    print(to)
    return 0


def _name(folders: list[str]) -> str:
    """Name of the archive: the run id, or a digest of the ids of several runs."""
    ids = [folder.rpartition("/")[2] for folder in folders]
    return ids[0] if len(ids) == 1 else digest(ids, 12)
