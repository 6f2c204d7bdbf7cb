"""A check of the entries of :data:`knot_runner.engine.tracker.TRACKERS`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from knot_runner.config.settings.groups import TrackerSettings
from knot_runner.engine.tracker import TRACKERS, TrackedRun, Tracker, flat
from knot_runner.results import RunResult

#: Log rows with nested values, texts, and numbers that no service can plot.
EXAMPLE_ROWS = ({"round": 1, "accuracy": 0.25, "local A": {"epoch": 2, "loss": 1.5}, "client": "a"},
                {"round": 2, "accuracy": 0.5, "loss": float("nan"), "spent": None, "reached": True})  # fmt: skip


def check_tracker(name: str, folder: Path, options: Mapping[str, Any] | None = None) -> None:
    """Check a tracker by mirroring a small run several times.

    These rules are checked:

    * The tracker begins once, receives every log row in order and then the summary, and is closed. The tracker accepts
      rows with nested keys, texts, ``None`` and numbers that are not finite.
    * The tracker continues a run that resumes, and is closed as failed if the run ends with an error.
    * The tracker does not change the other files of the run's folder.
    * If a call of the tracker fails, the run continues. One line reports the failure, and the tracker is not called
      again.

    Args:
        name: Name in ``TRACKERS``. A tracker of an online service sends the run to this service, unless you replace the
            service's client.
        folder: Existing folder of the run, without a ``result.json``.
        options: ``tracker.options`` of the run.

    Raises:
        AssertionError: The tracker breaks one of these rules.
    """
    spec = TrackerSettings(name, project="knot_runner", mode="offline", options=dict(options or {}))
    run = TrackedRun(spec, {"seed": 3, "lr": {"max": 0.1}}, folder, "abcdef", "femnist", "fedavg", 3, "federated")
    (folder / "result.json").write_text("{}")
    begun = [("begin", run), *(("log", flat(row)) for row in EXAMPLE_ROWS)]
    whole = [*begun, ("summarize", {"status": "done", "seed": 3, "threads": 1, "accuracy/ALL": 0.5}), ("close", False)]
    for kind, expected in {"new": whole, "resumed": whole, "failed": [*begun, ("close", True)]}.items():
        calls, notes = _mirror(run, crash=kind == "failed")
        assert not notes and calls == expected, f"tracker {name!r} in a {kind} run: {notes}, {calls}, not {expected}"
    for call in ("begin", "log", "summarize", "close"):
        calls, notes = _mirror(run, fails_at=call)
        assert len(notes) == 1 and calls[-1][0] == call, f"tracker {name!r} if {call} fails: {notes}, {calls}"
    assert (folder / "result.json").read_text() == "{}", f"tracker {name!r} changes the records of the run"


def _mirror(run: TrackedRun, fails_at: str = "", crash: bool = False) -> tuple[list[tuple[str, Any]], list[str]]:
    """Mirror a run, which ends with an error if ``crash``; return the tracker's calls and the reported lines."""
    entry = TRACKERS[run.spec.name]
    calls: list[tuple[str, Any]] = []
    notes: list[str] = []

    def noted(call: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def pass_on(first: Any, *rest: Any) -> Any:
            calls.append((call, first))
            if call == fails_at:
                raise ConnectionError("the service is gone")
            return function(first, *rest)

        return pass_on

    def begin(run: TrackedRun) -> SimpleNamespace:
        mirror = entry(run)
        return SimpleNamespace(**{call: noted(call, getattr(mirror, call)) for call in ("log", "summarize", "close")})

    replaced = mock.patch.dict(TRACKERS.data, {run.spec.name: noted("begin", begin)})
    with replaced, contextlib.suppress(InterruptedError), Tracker(run, notes.append) as tracker:
        for row in EXAMPLE_ROWS:
            tracker.log(row)
        if crash:
            raise InterruptedError
        scores = {"accuracy": {"ALL": 0.5}}
        tracker.finish(RunResult(status="done", task="", method="", seed=3, kind="", metrics=scores))
    return calls, notes
