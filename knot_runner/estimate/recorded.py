"""Looks up the cost of a kind of work in finished runs. Reads records only."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from knot_runner.composing.job import ComposedJob
from knot_runner.estimate import pieces
from knot_runner.estimate.pieces import Cost
from knot_runner.records import RESULT_FILE, read_record, read_result
from knot_runner.util.errors import UserError
from knot_runner.util.messages import counted

#: Maximum number of runs read per task that are not jobs of the command.
MAX_RUNS = 60
#: Maximum number of runs counted per kind.
ENOUGH_RUNS = 12
#: (kind, seconds at the start, seconds per unit, bytes)
RecordedCosts = tuple[str, float, float, int]


def recorded_costs(jobs: list[ComposedJob], cores: int) -> dict[str, Cost]:
    """Kind -> its median cost over finished runs of the same tasks below ``paths.out``.

    On texts a kind is :func:`pieces.in_family`. The number of busy cores is not recorded, so it ranges from one to all
    cores available to the run.
    """
    found: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    busy: dict[str, float] = {}
    for root in sorted({Path(job.settings.paths.out) / job.settings.task.name for job in jobs}):
        for folder, config, result in _finished(root, {job.run_id: job.config for job in jobs}):
            for kind, *seconds in _costs_of(folder, config, result):
                if len(found[kind]) < ENOUGH_RUNS:
                    found[kind].append(tuple(seconds))
                    one = result.get("engine") == "loop" or kind.startswith("texts")
                    busy[kind] = 1.0 if one else float(min(config["hardware"].get("workers") or cores, cores))
    return {kind: _cost(runs, busy[kind]) for kind, runs in found.items()}


def _cost(runs: list[tuple[float, float, int]], busy: float) -> Cost:
    """Cost of a kind from (seconds at the start, seconds per unit, bytes) of its runs: medians; the maximum of
    bytes."""
    starts, units, spaces = zip(*runs, strict=True)
    source = counted(len(runs), "recorded run")
    return Cost(statistics.median(starts), statistics.median(units), (1.0, busy), disk=max(spaces), source=source)


def _finished(root: Path, known: dict[str, dict[str, Any]]) -> Iterator[tuple[Path, dict[str, Any], dict[str, Any]]]:
    """Yield (folder, settings, result) of finished runs below ``root``, newest first: all in ``known`` (run id ->
    settings) and at most ``MAX_RUNS`` others."""
    others = 0
    for path in sorted(root.glob(f"*/*/{RESULT_FILE}"), key=lambda path: path.stat().st_mtime, reverse=True):
        run_id = path.parent.name
        others += run_id not in known
        if others > MAX_RUNS and run_id not in known:
            continue
        result = read_result(path.parent)
        if result is None or result.get("status") != "done":
            continue
        config = known.get(run_id) or _settings(path.parent, result)
        if config is not None:
            yield path.parent, config, result


def _settings(folder: Path, result: dict[str, Any]) -> dict[str, Any] | None:
    """The recorded settings; None if missing or damaged."""
    try:
        found = yaml.safe_load(read_record(folder, result, "config.yaml"))
    except (UserError, ValueError, yaml.YAMLError):
        return None
    return found if isinstance(found, dict) else None


def run_space(folder: Path) -> int:
    """Bytes of a run's folder while it runs: three times its state (two commits and the model), plus the other
    files."""
    sizes = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    states = [size for path, size in sizes.items() if path.name.startswith(("state-", "model."))]
    return 3 * max(states, default=0) + sum(sizes.values()) - sum(states)


def _costs_of(folder: Path, config: dict[str, Any], result: dict[str, Any]) -> list[RecordedCosts]:
    """Costs from one run; [] if its records are of another version."""
    try:
        seconds = result["seconds"]
        if "stages" in seconds:
            return _of_stages(folder, config, seconds["stages"])
        space = run_space(folder)
        if result.get("kind") != "federated":
            return [(pieces.whole_kind(config), 0.0, float(seconds["total"]), space)]
        if not result["rounds"]:
            return []
        personal = seconds.get("personalisation", 0.0)
        start = max(0.0, seconds["total"] - seconds["rounds"] - seconds.get("distances", 0.0) - personal)
        found = [(pieces.round_kind(config), start, seconds["rounds"] / result["rounds"], space)]
        if "distances" in seconds:
            found.append((pieces.distances_kind(config), 0.0, seconds["distances"], 0))
        if personal:
            found.append((pieces.personal_kind(config), 0.0, personal, 0))
        return found
    except (KeyError, TypeError, AttributeError, OSError):
        return []


def _kind_of_stage(config: dict[str, Any], stage: str, party: str, batch: int) -> str:
    method = config["method"]
    if stage != "distil":
        return pieces.teacher_kind(party, batch)
    if "terms" in method:
        return pieces.students_kind(batch, config["model"]["name"], method["terms"], method["schedule"])
    return pieces.soft_targets_kind(batch, method["loss"])


def _of_stages(folder: Path, config: dict[str, Any], stages: dict[str, float]) -> list[RecordedCosts]:
    """Seconds per epoch of every teacher and of the distillation, each of which stores a model."""
    training, found = config["training"], []
    model = (folder / "model.safetensors").stat().st_size
    for title, seconds in stages.items():
        stage, _, party = title.partition(" ")
        if stage not in training:  # predictions, which are timed per text
            continue
        batch, epochs = training[stage]["batch"], training[stage]["epochs"]
        kind = _kind_of_stage(config, stage, party, batch)
        found.append((pieces.in_family(config, kind), 0.0, seconds / epochs, model))
    return found
