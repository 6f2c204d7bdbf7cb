"""Distances that were interrupted: a real SIGKILL between two pairs, and the log that outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from knot_runner.cli import main
from knot_runner.errors import UserError
from knot_runner.pipelines import matrix, pair_log
from knot_runner.pipelines.pair_log import PairLog
from tests.distances import CLIENTS, result_of

#: SIGKILL as soon as the pair log has three entries, each of which is written at once.
KILLED = """
import os, signal, sys
from knot_runner.cli import main
from knot_runner.pipelines import pair_log
pair_log.EVERY = 0.0
append, calls = pair_log.append_synced, []
def counted(path, line):
    append(path, line)
    calls.append(path)
    if len(calls) == 3:
        with path.open("ab") as file:
            file.write(b'{"pairs": [[0,')
        os.kill(os.getpid(), signal.SIGKILL)
pair_log.append_synced = counted
main(sys.argv[1:])
"""


def test_kill_9_and_the_same_command_again(tmp_path, monkeypatch):
    assert main([*CLIENTS, f"paths.out={tmp_path / 'alone'}"]) == 0
    command = [sys.executable, "-c", KILLED, *CLIENTS, f"paths.out={tmp_path / 'killed'}"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == -signal.SIGKILL, done.stderr
    (log,) = tmp_path.glob("killed/artefacts/distances/*/pairs.jsonl")
    logged = {tuple(pair) for line in log.read_text().splitlines()[:3] for pair in json.loads(line)["pairs"]}
    assert 3 <= len(logged) < 66
    compute, asked = matrix.distance_matrix, {}

    def watched(sets, options, seed, workers, known, progress):
        asked["known"], asked["fresh"] = set(known), []

        def hear(pairs, values):
            asked["fresh"] += pairs
            progress(pairs, values)

        return compute(sets, options, seed, workers, known, hear)

    monkeypatch.setattr(matrix, "distance_matrix", watched)
    assert main([*CLIENTS, f"paths.out={tmp_path / 'killed'}"]) == 0
    assert asked["known"] == logged
    assert not logged & set(asked["fresh"]) and len(logged | set(asked["fresh"])) == 66
    assert result_of(tmp_path / "killed")["matrix"] == result_of(tmp_path / "alone")["matrix"]
    assert not log.exists()


def test_the_log_takes_pairs_of_any_order_and_writes_when_due(tmp_path, monkeypatch):
    log = PairLog(tmp_path / "pairs.jsonl", 4)
    log.add([(0, 1), (3, 2)], [0.1, 1 / 3])
    assert log.done == {(0, 1): 0.1, (2, 3): 1 / 3} and not log.path.exists()
    monkeypatch.setattr(pair_log, "EVERY", 0.0)
    log.add([(0, 2)], [5e-324])
    assert len(log.path.read_text().splitlines()) == 1
    log.flush()
    again = PairLog(log.path, 4)
    assert again.done == log.done and again.seconds == log.seconds > 0
    again.flush()
    assert len(log.path.read_text().splitlines()) == 1  # nothing waits, nothing is written


def test_a_cut_last_line_is_dropped_and_the_next_entry_stands_alone(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"pairs": [[0, 1]], "values": [2.5], "seconds": 1.0}\n{"pairs": [[0, 2]], "val')
    log = PairLog(path, 3)
    assert log.done == {(0, 1): 2.5} and log.seconds == 1.0
    log.add([(1, 2)], [7.0])
    log.flush()
    assert PairLog(path, 3).done == {(0, 1): 2.5, (1, 2): 7.0}


@pytest.mark.parametrize(
    "line",
    ['{"pairs": [[0, 1]]}', "[]", "no json", '{"pairs": [[0, 3]], "values": [1.0], "seconds": 1}',
     '{"pairs": [[0, 1]], "values": [NaN], "seconds": 1}', '{"pairs": [[0, 1]], "values": ["x"], "seconds": 1}'],
)  # fmt: skip
def test_a_damaged_log_is_named(tmp_path, line):
    path = tmp_path / "pairs.jsonl"
    path.write_text(f'{{"pairs": [[0, 1]], "values": [2.5], "seconds": 1.0}}\n{line}\n')
    with pytest.raises(UserError, match=r"pairs.jsonl: line 2: is damaged; delete its folder and repeat the command"):
        PairLog(path, 3)
