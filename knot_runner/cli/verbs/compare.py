"""``knot-runner compare``: parses flags and filters; prints the comparison and exports it to files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from knot_runner.util.errors import UserError, nearest

if TYPE_CHECKING:
    from knot_runner.report.compare.answer import Question
    from knot_runner.report.compare.files import Sheet

COMPARE_HELP = """\
knot-runner compare [key=value ...] [flags]: any runs side by side, by any setting

  key=value, key!=value, key<value ...   runs whose settings are so
  --out=DIR            where the runs are (also paths.out=DIR)
  --by=KEYS            a row per value of these settings (default: all that differ); run_id is a row per run
  --measure=KEYS       the columns: accuracy, f1, sd, ...
  --sort=KEY           order of the rows
  --best=MEASURE       of the runs over --over=KEYS, the best alone
  --over=KEYS          what --best chooses over
  --export=FILE        also as .csv, .tex or .md; several with commas

  knot-runner compare task=femnist --by=method.name --measure=accuracy --export=runs.csv"""
COMPARE_FLAGS = ("--out", "--by", "--measure", "--best", "--over", "--sort", "--export")
#: Default folder of runs, and the key by which other verbs set it.
OUT, PLACE = "outputs", "paths.out="
#: Key of the data folder against which runs are checked.
DATA_KEY = "paths.data="


def compare_command(arguments: list[str]) -> int:
    """Compare runs below ``paths.out``: ``[key=value ...] [--by=KEYS] [--measure=KEYS] [--sort=KEY]
    [--best=MEASURE --over=KEYS] [--export=FILE] [--out=DIR]``. Raises :class:`UserError`."""
    from knot_runner.report.compare.files import TerminalSheet, form_of, write
    from knot_runner.report.compare.settings import split_commas
    from knot_runner.report.render.terminal import output

    exports = _flags([a for a in arguments if a.startswith("-")]).get("--export", ())
    files = [Path(name).expanduser() for text in exports for name in split_commas(text)]
    for file in files:
        form_of(file)  # before anything is read
    sheet = answer_of(arguments)
    output().print(TerminalSheet(sheet))
    for file in files:
        write(sheet, file)
        print(file)
    return 0


def answer_of(arguments: list[str]) -> Sheet:
    """The comparison that the verb's arguments request, as a table. Raises :class:`UserError`."""
    from knot_runner.report.compare.answer import compare_runs

    flags = _flags([a for a in arguments if a.startswith("-")])
    return compare_runs(_question(flags, [a for a in arguments if not a.startswith("-")]))


def _question(flags: dict[str, list[str]], words: Sequence[str]) -> Question:
    from knot_runner.composing.override_errors import message_text
    from knot_runner.report.compare.answer import Question
    from knot_runner.report.compare.settings import parse_filter

    if "--over" in flags and "--best" not in flags:
        raise UserError("--over: goes with --best=MEASURE")
    for word in words:
        if f"--{word.partition('=')[0]}" in COMPARE_FLAGS:
            raise UserError(f"{word.partition('=')[0]}: is a flag of compare; --{message_text(word)} is right")
    one = {name: texts[-1] for name, texts in flags.items()}
    place = [word.partition("=")[2] for word in words if word.startswith(PLACE)]
    return Question(
        out=Path(one.get("--out") or [OUT, *place][-1]).expanduser(),
        filters=tuple(parse_filter(word) for word in words if not word.startswith((PLACE, DATA_KEY))),
        by=_names(flags["--by"]) if "--by" in flags else None,
        measures=_names(flags.get("--measure", ())),
        best=one.get("--best", ""),
        over=_names(flags.get("--over", ())),
        sort=one.get("--sort", ""),
        data=next((word.removeprefix(DATA_KEY) for word in reversed(words) if word.startswith(DATA_KEY)), None),
    )


def _flags(arguments: Sequence[str]) -> dict[str, list[str]]:
    """Flag -> its values, in the order given. Raises :class:`UserError` for an unknown flag."""
    found: dict[str, list[str]] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name not in COMPARE_FLAGS:
            raise UserError(f"{name}: there is no such flag{nearest(name, COMPARE_FLAGS)}")
        if not equals or (not value and name != "--by"):
            raise UserError(f"{argument}: needs a value, {name}=...")
        found.setdefault(name, []).append(value)
    return found


def _names(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())
