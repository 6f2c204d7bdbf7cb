"""What killed processes left behind is cleared by the next command, and nothing that somebody needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from knot_runner.cli.main import main
from knot_runner.records import lock_of, lock_of_stage, lock_of_sweep, write_result, write_sealed
from knot_runner.sweeps import leftovers
from knot_runner.util.files import locked
from tests.tiny import TINY_IMAGES

STATES = {"commit.json", "state-0.safetensors", "state-1.safetensors"}


def fill(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("x")
    return folder


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_beside_a_finished_run_states_go_and_records_stay(tmp_path: Path) -> None:
    run = fill(tmp_path / "task" / "method" / "r", *STATES, "progress.json", "result.json.1-2.tmp", "rounds.jsonl")
    fill(run, "log.txt", "failed.json", "config.yaml", "own.txt")
    write_result(run, {"status": "done"})
    leftovers.clear(tmp_path)
    assert left(run) == {"result.json", "rounds.jsonl", "log.txt", "failed.json", "config.yaml", "own.txt"}


@pytest.mark.parametrize("result", [None, "damaged"])
def test_an_unfinished_run_keeps_what_it_goes_on_from(tmp_path: Path, result: str | None) -> None:
    run = fill(tmp_path / "task" / "method" / "r", *STATES, "state-0.safetensors.1-2.tmp")
    if result:
        (run / "result.json").write_text(result)
    leftovers.clear(tmp_path)
    assert left(run) == STATES | ({"result.json"} if result else set())


def test_stages_and_sweeps(tmp_path: Path) -> None:
    stages, names = tmp_path / "artefacts", (*STATES, "pairs.jsonl", "tensors.safetensors.1-2.tmp")
    done, begun = fill(stages / "local" / "done", *names), fill(stages / "local" / "begun", *names)
    write_sealed(done / "info.json", {"seconds": 1.0})
    sweep = fill(tmp_path / ".sweeps" / "20260101-000000-abcdef", "plan.json", "outcomes.json.1-2.tmp")
    leftovers.clear(tmp_path)
    assert left(done) == {"info.json"}
    assert left(begun) == {*STATES, "pairs.jsonl"}
    assert left(sweep) == {"plan.json"}


def test_what_a_process_is_at_stays(tmp_path: Path) -> None:
    run, stage = tmp_path / "task" / "method" / "r", tmp_path / "artefacts" / "local" / "k"
    sweep = tmp_path / ".sweeps" / "s"
    locks = (lock_of(str(tmp_path), "r"), lock_of_stage(tmp_path / "artefacts", "local", "k"), lock_of_sweep(sweep))
    for folder, lock in zip((run, stage, sweep), locks, strict=True):
        fill(folder, "x.json.1-2.tmp")
        with locked(lock):
            leftovers.clear(tmp_path)
            assert len(left(folder)) == 1
        leftovers.clear(tmp_path)
        assert not left(folder)


@pytest.mark.parametrize("grid", [[], ["-m"]])
def test_any_command_clears(tmp_path: Path, grid: list[str]) -> None:
    run = fill(tmp_path / "task" / "method" / "r", *STATES)
    write_result(run, {"status": "done"})
    sweep = fill(tmp_path / ".sweeps" / "s", "plan.json.1-2.tmp")
    arguments = [
        *grid,
        *TINY_IMAGES,
        "training.rounds=1",
        f"paths.out={tmp_path}",
        "task.source=local",
        "paths.data=null",
    ]
    main(arguments)  # fails, for it has no data; what it clears it clears first
    assert left(run) == {"result.json"} and not left(sweep)
