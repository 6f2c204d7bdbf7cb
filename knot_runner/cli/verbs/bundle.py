"""``knot-runner bundle RUN...``: packs finished runs into one archive for others to verify."""

from __future__ import annotations

from pathlib import Path

from knot_runner.config.strict import digest
from knot_runner.util.errors import UserError, nearest

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
    from knot_runner.records import find_run
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
