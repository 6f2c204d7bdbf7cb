"""``knot-runner verify BUNDLE``: reruns the runs of a bundle here and compares the results."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from knot_runner.util.errors import UserError, nearest
from knot_runner.util.messages import LOGGER, counted

if TYPE_CHECKING:
    from knot_runner.bundles.compare import Comparison
    from knot_runner.bundles.rerun import RerunPlace
    from knot_runner.bundles.unpack import BundledRun

VERIFY_HELP = """\
knot-runner verify BUNDLE [--rounds=N] [--network] [paths.data=DIR] [paths.out=DIR]: make a bundle's runs again here

  BUNDLE               an archive that 'knot-runner bundle' wrote
  --rounds=N           of federated runs the first N rounds alone, which do not depend on how many there are; a run of
                       which they do (privacy.epsilon, fedsoup), or that has none, is made again whole, which is said
  --network            runs may download from the Hugging Face hub what their settings name
  paths.data=DIR       the data (default: the variable KNOT_DATA)
  paths.out=DIR        an empty folder for the runs, which then stay (default: a temporary one, which does not)

Of each run one answer, the strictest that is true: the same bits (round log, result, weights and predictions); within
rounding (whole numbers are equal, others differ by at most 0.001 of their size, or 0.0001); within the interval
(accuracy lies in the 95% interval of the recorded one over all test examples, Wilson's); not the same. Data or code
that differ are said. Exit code 0: all runs were made again and none is "not the same"; 1: one is; 2: one could not be
made.
Nothing in a bundle is executed: runs with plug-ins are refused.

  knot-runner verify femnist.tar.gz --rounds=5 paths.data=DIR"""
VERIFY_FLAGS = ("--rounds=N", "--network")
VERIFY_KEYS = ("paths.data", "paths.out")


@dataclass(frozen=True)
class VerifyOptions:
    """Arguments of the verb. ``rounds``: number of first rounds to rerun, None for all; ``out``: None for a temporary
    folder."""

    bundle: Path
    rounds: int | None
    network: bool
    data: str | None
    out: Path | None


def verify_command(arguments: list[str]) -> int:
    """Rerun the runs and print a verdict on each. Raises :class:`UserError`, for example for a damaged bundle."""
    options = _options(arguments)
    from knot_runner.bundles.unpack import read_bundle

    with tempfile.TemporaryDirectory(prefix="knot-runner-") as folder:
        runs = read_bundle(options.bundle, Path(folder) / "bundle")
        out = options.out or Path(folder) / "runs"
        _check_new(options.out)
        _say_how_long(runs)
        answers = [_answered(run, options, out) for run in runs]
    counts = Counter(answers)
    print(f"{counted(len(runs), 'run')}: {', '.join(f'{n} {name}' for name, n in counts.items())}")
    if counts["not the same"]:
        return 1
    return 2 if counts[NOT_MADE] else 0


#: The verdict on a run that was refused or failed here.
NOT_MADE = "not made again"


def _options(arguments: list[str]) -> VerifyOptions:
    words = [word for word in arguments if not word.startswith("-") and "=" not in word]
    rounds, network, keys = None, False, {"paths.data": os.environ.get("KNOT_DATA") or "", "paths.out": ""}
    for argument in arguments:
        name, _, value = argument.partition("=")
        if argument in words:
            continue
        if name == "--rounds":
            rounds = _count(value)
        elif argument == "--network":
            network = True
        elif name in VERIFY_KEYS and value:
            keys[name] = value
        else:
            raise UserError(f"{argument}: verify takes no such word{nearest(argument, [*VERIFY_FLAGS, *VERIFY_KEYS])}")
    if len(words) != 1:
        raise UserError("verify: needs one bundle, as in 'knot-runner verify runs.tar.gz'")
    out = Path(keys["paths.out"]).expanduser() if keys["paths.out"] else None
    return VerifyOptions(Path(words[0]).expanduser(), rounds, network, keys["paths.data"] or None, out)


def _check_new(out: Path | None) -> None:
    """Raises :class:`UserError` for a non-empty folder: a run in it would be compared with itself."""
    if out is not None and out.exists() and not out.is_dir():
        raise UserError(f"paths.out: {out}: is not a folder")
    if out is not None and out.exists() and any(out.iterdir()):
        raise UserError(f"paths.out: {out}: is not empty, and runs are made anew; another folder is right")


def _count(value: str) -> int:
    if not value.isdecimal() or not value.isascii() or not 1 <= len(value) <= 6 or int(value) < 1:
        raise UserError(f"--rounds: {value[:40]!r} is not a number of rounds from 1 to 999999")
    return int(value)


def _say_how_long(runs: list[BundledRun]) -> None:
    """Print the recorded duration of the original runs, as far as known."""
    from knot_runner.bundles.compare import table_of
    from knot_runner.report.render.text import duration

    totals = [table_of(run.result, "seconds").get("total") for run in runs]
    seconds = [total for total in totals if isinstance(total, int | float) and 0 <= total <= 1e9]
    if seconds:
        LOGGER.info("%s took %s on record", counted(len(seconds), "run"), duration(sum(seconds)))


def _answered(run: BundledRun, options: VerifyOptions, out: Path) -> str:
    """The verdict on one run; prints it with its evidence."""
    from knot_runner.bundles.rerun import RerunPlace
    from knot_runner.report.render.text import plain

    cuda = False
    if str(run.result.get("device", "")).startswith("cuda"):
        import torch

        cuda = torch.cuda.is_available()
    try:
        answer, lines = _compared(run, options, RerunPlace(options.data, out, options.network, cuda))
    except UserError as problem:
        answer, lines = NOT_MADE, [str(problem)]
    except Exception as problem:  # a config may hold anything; continue with the other runs
        answer, lines = NOT_MADE, [f"{type(problem).__name__}: {problem}"]
    print(plain(f"{run.folder}, seed {run.result['seed']}: {answer}"))
    for line in lines:
        print(f"  {plain(line)[:LONGEST_QUOTE]}")
    return answer


#: Maximum characters of a line that quotes a bundle.
LONGEST_QUOTE = 400


def _compared(run: BundledRun, options: VerifyOptions, place: RerunPlace) -> tuple[str, list[str]]:
    """(The verdict, lines of evidence). Raises :class:`UserError` if the run cannot be rerun here."""
    from rich.console import Console

    from knot_runner.bundles.compare import compare_rounds, compare_whole
    from knot_runner.bundles.rerun import job_here, made_again, whole_because
    from knot_runner.cli.progress import Live
    from knot_runner.util.messages import messages_to

    rows, lines = run.rows(), []
    job, cut = job_here(run.config, place), None
    if options.rounds is not None and (why := whole_because(job)):
        lines.append(f"is made again whole: it {why}")
    elif options.rounds is not None and options.rounds < len(rows):
        cut = options.rounds
        job = job_here(run.config, place, cut)
    with Live(Console(stderr=True)) as live, messages_to(live.note):
        made = made_again(job, live.watch, lambda _: None)
    if cut is None:
        found = compare_whole(run.result, rows, made.result, made.rows)
    else:
        found = compare_rounds(run.result, rows[:cut], made.rows[:cut])
    return found.likeness, [*lines, *_rests_on(found, len(rows), cut), *_differences(run, made.result)]


def _rests_on(found: Comparison, rounds: int, cut: int | None) -> list[str]:
    """Lines on what was compared, what differs, and accuracies with their intervals."""
    log = f"{found.rounds} of {rounds} rows of the log" if rounds else "no log"
    whole = f", {found.numbers} values of the result, {found.files} files by their bytes" if cut is None else ""
    return [f"compared: {log}{whole}", *found.differences, *found.intervals]


def _differences(run: BundledRun, now: dict) -> list[str]:
    """Lines on data, code and device that differ from the record."""
    from knot_runner.provenance import code_changes

    lines = [f"made by other code: {change}" for change in code_changes(run.result)]
    if run.result.get("data") != now.get("data"):
        lines.insert(0, f"made from other data: {_data_text(run.result, now)}")
    if run.result.get("device") != now.get("device"):
        lines.append(f"made on {run.result.get('device')}, now on {now.get('device')}")
    return lines


def _file_digests(result: dict) -> dict[str, str | None]:
    files = [file for file in result.get("files") or [] if isinstance(file, dict)]
    return {str(file.get("path")): file.get("sha256") for file in files}


def _data_text(was: dict, now: dict) -> str:
    """Names of files whose digests differ; else the digests of all data read."""
    old, new = _file_digests(was), _file_digests(now)
    unlike = sorted(path for path in {*old, *new} if old.get(path) != new.get(path))
    if unlike:
        return f"{', '.join(unlike[:4])}{' and more' * (len(unlike) > 4)} differ"
    return f"digest {str(was.get('data'))[:12]} on record, {str(now.get('data'))[:12]} now"
