"""A check that compares a sweep launcher with ``hydra/launcher=basic``."""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path

from knot_runner.cli.main import main
from knot_runner.python import FinishedRun
from knot_runner.records import require_result
from knot_runner.testing.methods import Record, record_of, small_run

#: Overrides of the small run of :mod:`knot_runner.testing.methods`, so that a job has one round.
_JOB = (
    "task.source=embedded",
    "paths.data_dir=null",
    "hardware=cpu",
    "training.rounds=1",
    "training.small_clients=stop",
)


def check_launcher(name: str, *overrides: str) -> None:
    """Check that ``hydra/launcher=name`` runs a sweep as ``basic`` does.

    The sweep has three jobs, and the settings of the second job are invalid. The other two jobs must have the same
    results, rounds and weights as with ``basic``. The second job must have a ``failed.json``, and the exit code must be
    2, for a user error. The same command without the second job must end with 0 and start no job again.

    Args:
        name: The name of the launcher; its package must be installed.
        overrides: Further overrides of the command, such as ``hydra.launcher.n_jobs=2``.

    Raises:
        AssertionError: A result differs. The message describes the first difference.
    """
    with tempfile.TemporaryDirectory() as folder:
        basic, launched = Path(folder, "basic"), Path(folder, "own")
        words = [f"hydra/launcher={name}", *overrides]
        _launched(0, basic, "hydra/launcher=basic", "training.batch_size=8,4")
        logs = _launched(2, launched, *words, "training.batch_size=8,99999,4")
        results, expected = runs_below(launched), runs_below(basic)
        assert results.keys() == expected.keys(), f"{name}: a failing job affects others ({len(results)} of 2 are done)"
        assert len(list(launched.glob("*/*/*/failed.json"))) == 1, f"{name}: the job that fails has no failed.json"
        assert results == expected, f"{name}: results, rounds or weights are not those of basic"
        assert _launched(0, launched, *words, "training.batch_size=8,4") == logs, f"{name}: finished jobs run again"


def runs_below(out: Path) -> dict[Path, Record]:
    """Return folder -> record of every finished run below ``out``, without times."""
    folders = [path.parent for path in out.glob("*/*/*/result.json")]
    return {folder.relative_to(out): record_of(FinishedRun(folder, require_result(folder))) for folder in folders}


def _launched(expected: int, out: Path, *words: str) -> list[str]:
    """Run the sweep and require the exit code ``expected``; return its jobs' logs, with one line for each start."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        code = main(["-m", *small_run(_JOB, out, *words)])
    assert code == expected, f"{' '.join(words)}: exit code {code}, expected {expected}:\n{errors.getvalue()}"
    return [path.read_text(encoding="utf-8") for path in sorted(out.glob("*/*/*/log.txt"))]
