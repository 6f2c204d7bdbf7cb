"""Small grids through the real command line: in this process, or in one of their own where they are to be killed."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_all
from knot_runner.python import FinishedRun
from knot_runner.records import require_result
from knot_runner.sweeps.plan import write_plan
from knot_runner.testing import record_of
from tests.tiny import TINY_IMAGES, replaced

HERE = Path(__file__).parent
LAUNCHERS = {
    "basic": [],
    "joblib": ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
    "submitit_local": ["hydra/launcher=submitit_local", "hydra.sweeper.max_batch_size=3"],
}


def small(out, *arguments):
    """``arguments`` as those of a tiny grid, whose results go below ``out``."""
    return ["-m", *replaced(TINY_IMAGES, f"paths.output_dir={out}", *arguments)]


def command(out, *arguments):
    return [sys.executable, "-m", "knot_runner", *small(out, *arguments)]


def faulty(*faults):
    """Overrides of the method in whose run of seed i ``faults[i]`` happens, and that grid of seeds."""
    seeds = ",".join(str(seed) for seed in range(len(faults)))
    return [
        f"--config-dir={HERE / 'conf'}", "method=faulty", f"plugins=['{HERE / 'faults.py'}']", f"seed={seeds}",
        f"method.faults=[{','.join(faults)}]",
    ]  # fmt: skip


def sweep(out, *arguments, **env):
    """The sweep, from this process: exit code, what it said. ``env``: more variables. Jobs are processes of a server
    that has imported torch once for all tests; launchers of others need a process that ends with them
    (:func:`sweep_apart`)."""
    said = io.StringIO()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": "200", **env}),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(said),
    ):
        return main(small(out, *arguments)), said.getvalue()


def sweep_apart(out, *arguments, timeout=240, **env):
    """The same in a process of its own."""
    env = {**os.environ, "COLUMNS": "200", **env}
    done = subprocess.run(command(out, *arguments), capture_output=True, text=True, timeout=timeout, env=env)
    return done.returncode, done.stderr


def results(out):
    """Folder -> record of every finished run below ``out``, without times."""
    folders = [path.parent for path in out.glob("*/*/*/result.json")]
    return {folder.relative_to(out): record_of(FinishedRun(folder, require_result(folder))) for folder in folders}


def begun(out):
    """Run folder -> how often it was begun."""
    return {log.parent.name: log.read_text().count(" begin ") for log in Path(out).glob("*/*/*/log.txt")}


def composed(out, *overrides, base=TINY_IMAGES):
    return compose_all([*base, f"paths.output_dir={out}", *overrides])[0]


def planned(jobs):
    return write_plan(Path(jobs[0].settings.paths.output_dir), jobs)


def pretended(out, count, title="job {}"):
    """Jobs as far as a launcher, its board and its summary look at them."""
    return [SimpleNamespace(run_id=str(at), folder=out / str(at), title=title.format(at)) for at in range(count)]
