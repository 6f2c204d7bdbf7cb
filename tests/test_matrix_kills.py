"""Distances that were interrupted: a real SIGKILL between two pairs, and the log that outlives it."""

from __future__ import annotations

import json
import os
import signal

import pytest

from knot_runner.cli.main import main
from knot_runner.pipelines import matrix
from knot_runner.pipelines.runs import commits
from knot_runner.pipelines.runs.commits import PairLog
from knot_runner.util.processes import prepared
from tests.distances import CLIENTS, result_of
from tests.forked import PRELOADED


def killed(arguments):
    """In a process of its own: SIGKILL as soon as the pair log has three entries, each of which is written at once."""
    append, calls = commits.append_synced, []

    def counted(path, line):
        append(path, line)
        calls.append(path)
        if len(calls) == 3:
            with path.open("ab") as file:
                file.write(b'{"pairs": [[0,')
            os.kill(os.getpid(), signal.SIGKILL)

    commits.SYNC_SECONDS, commits.append_synced = 0.0, counted
    main(arguments)


@pytest.mark.thorough
def test_kill_9_and_the_same_command_again(tmp_path, monkeypatch):
    assert main([*CLIENTS, f"paths.out={tmp_path / 'alone'}"]) == 0
    process = prepared(PRELOADED).Process(target=killed, args=([*CLIENTS, f"paths.out={tmp_path / 'killed'}"],))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
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
    log = PairLog(tmp_path / "pairs.jsonl", 4, print)
    log.add([(0, 1), (3, 2)], [0.1, 1 / 3])
    assert log.done == {(0, 1): 0.1, (2, 3): 1 / 3} and not log.path.exists()
    monkeypatch.setattr(commits, "SYNC_SECONDS", 0.0)
    log.add([(0, 2)], [5e-324])
    assert len(log.path.read_text().splitlines()) == 1
    log.flush()
    again = PairLog(log.path, 4, print)
    assert again.done == log.done and again.seconds == log.seconds > 0
    again.flush()
    assert len(log.path.read_text().splitlines()) == 1  # nothing waits, nothing is written


def logged(folder, entries=3):
    """The path of a log with one pair an entry."""
    log = PairLog(folder / "pairs.jsonl", 4, print)
    folder.mkdir(exist_ok=True)
    for j in range(1, entries + 1):
        log.add([(0, j)], [j / 3])
        log.flush()
    return log.path


def test_a_cut_last_line_is_dropped_and_the_next_entry_stands_behind_the_others(tmp_path):
    path = logged(tmp_path)
    path.write_bytes(path.read_bytes()[:-9])
    log = PairLog(path, 4, print)
    assert log.done == {(0, 1): 1 / 3, (0, 2): 2 / 3} and log.seconds > 0
    log.add([(1, 2)], [7.0])
    log.flush()
    assert PairLog(path, 4, print).done == {(0, 1): 1 / 3, (0, 2): 2 / 3, (1, 2): 7.0}


def digit(lines):
    return [lines[0], lines[1].replace("0.6666", "0.6667"), lines[2]]


@pytest.mark.parametrize(
    "change",
    [
        digit,
        lambda lines: lines[1:],
        lambda lines: [lines[0], lines[2]],
        lambda lines: [lines[1], lines[0], lines[2]],
        lambda lines: [*lines, lines[2]],
        lambda lines: [*lines, "[]"],
        lambda lines: [*lines, "no json"],
        lambda lines: [*lines, '{"pairs": [[0, 1]], "values": [NaN], "seconds": 1, "digest": ""}'],
    ],
)
def test_a_changed_log_is_set_aside_and_said(tmp_path, change):
    path, said = logged(tmp_path), []
    was = "".join(f"{line}\n" for line in change(path.read_text().splitlines()))
    path.write_text(was)
    log = PairLog(path, 4, said.append)
    assert log.done == {} and log.seconds == 0.0 and not path.exists()
    assert len(said) == 1 and str(path) in said[0] and "set-aside-1" in said[0]
    assert (tmp_path / "set-aside-1" / "pairs.jsonl").read_text() == was
    log.add([(1, 2)], [7.0])
    log.flush()
    assert PairLog(path, 4, print).done == {(1, 2): 7.0}


def test_the_log_of_other_work_is_set_aside(tmp_path):
    path, said = logged(tmp_path / "a"), []
    other = tmp_path / "b" / path.name
    other.parent.mkdir()
    other.write_bytes(path.read_bytes())
    assert PairLog(other, 4, said.append).done == {} and said
    assert len(PairLog(path, 4, said.append).done) == 3
