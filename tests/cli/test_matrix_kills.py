"""Distances that were interrupted: a real SIGKILL between two pairs, and the commit that outlives it."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest
from safetensors.numpy import load_file

from knot_runner.cli.main import main
from knot_runner.pipelines import matrix
from knot_runner.pipelines.runs import commits
from knot_runner.util.processes import prepared
from tests.forked import PRELOADED
from tests.oracles.distances import CLIENTS, result_of


def killed(arguments):
    save, calls = commits.Commits.save, []

    def counted(self, *work):
        save(self, *work)
        calls.append(work)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    commits.Commits.save, commits.Commits.due = counted, lambda self: True
    main(arguments)


@pytest.mark.thorough
def test_kill_9_and_the_same_command_again(tmp_path, monkeypatch):
    assert main([*CLIENTS, f"paths.out={tmp_path / 'alone'}"]) == 0
    process = prepared(PRELOADED).Process(target=killed, args=([*CLIENTS, f"paths.out={tmp_path / 'killed'}"],))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    (record,) = tmp_path.glob("killed/artefacts/distances/*/commit.json")
    state = load_file(record.parent / json.loads(record.read_text())["file"])["matrix"]
    committed = set(map(tuple, np.argwhere(np.isfinite(state)).tolist()))
    assert 3 <= len(committed) < 66
    compute, asked = matrix.distance_matrix, {}

    def watched(sets, options, seed, workers, known, progress):
        asked["known"], asked["fresh"] = set(known), []

        def hear(pairs, values):
            asked["fresh"] += pairs
            progress(pairs, values)

        return compute(sets, options, seed, workers, known, hear)

    monkeypatch.setattr(matrix, "distance_matrix", watched)
    assert main([*CLIENTS, f"paths.out={tmp_path / 'killed'}"]) == 0
    assert asked["known"] == committed
    assert not committed & set(asked["fresh"]) and len(committed | set(asked["fresh"])) == 66
    assert result_of(tmp_path / "killed")["matrix"] == result_of(tmp_path / "alone")["matrix"]
    assert {path.name for path in record.parent.iterdir()} == {"info.json", "tensors.safetensors"}
