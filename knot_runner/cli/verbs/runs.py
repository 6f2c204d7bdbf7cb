"""``knot-runner bundle RUN ...``: packs finished runs into one archive, which others can verify."""

from __future__ import annotations

import argparse
from pathlib import Path

from knot_runner.bundles.pack import contents_lines, finished_runs, packed_run, write_bundle
from knot_runner.cli.parsers import names_and_keys
from knot_runner.config.strict import digest
from knot_runner.records import find_run
from knot_runner.report.render.text import plain
from knot_runner.util.errors import UserError

ENDINGS = (".tar.gz", ".tgz")


def runs_and_keys(options: argparse.Namespace, known: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """Split ``options.words`` into the names of runs and a dict of the ``KEY=VALUE`` words.

    Raises:
        UserError: No run is named, or a key is not in ``known``.
    """
    runs, keys = names_and_keys(options.words, known)
    if not runs:
        raise UserError("expected the folder or the run id of a finished run in paths.output_dir", "RUN")
    return runs, keys


def bundle_command(options: argparse.Namespace) -> int:
    """Pack the named runs into an archive. Print the content and the path of the archive. Raises :class:`UserError`."""
    from knot_runner.cli.show import folder_for

    names, keys = runs_and_keys(options, ("paths.output_dir",))
    if options.to is not None and not options.to.endswith(ENDINGS):
        raise UserError(f"expected a name that ends in {' or '.join(ENDINGS)}", f"--to={options.to}")
    out = Path(keys.get("paths.output_dir", "outputs")).expanduser()
    packed = {}
    for name in names:
        folders = finished_runs(find_run(name, out))
        if not folders:
            raise UserError("no finished run found (a folder with result.json)", name)
        for folder in folders:
            run = packed_run(folder, options.weights)
            packed[run.folder] = run
    runs = [packed[name] for name in sorted(packed)]
    if options.to:
        to = Path(options.to).expanduser()
    else:
        ids = [Path(run.folder).name for run in runs]
        name = ids[0]
        if len(ids) > 1:
            name = digest(ids, 12)
        to = folder_for(out, "bundles") / f"{name}{ENDINGS[0]}"
    write_bundle(runs, to)
    for line in contents_lines(runs):
        print(plain(line))
    print(to)
    return 0
