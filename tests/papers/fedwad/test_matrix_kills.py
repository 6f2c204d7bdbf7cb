"""Distances that were interrupted between two pairs, and the commit that outlives it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from knot_runner.pipelines import clustered, commits
from tests.oracles.distances import CLIENTS, result_of
from tests.runs import run


class Killed(BaseException):
    """Stands for kill -9: nothing of ours catches it."""


def test_matrix_run_resumes_from_commit_between_pairs(tmp_path, monkeypatch):
    run(tmp_path / "alone", *CLIENTS)
    save, calls = commits.Commits.save, []

    def dying(self, *work):
        save(self, *work)
        calls.append(work)
        if len(calls) == 3:
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(commits.Commits, "save", dying)
        patch.setattr(commits.Commits, "due", lambda self: True)
        run(tmp_path / "killed", *CLIENTS)
    (record,) = tmp_path.glob("killed/artifacts/distances/*/commit.json")
    state = load_file(record.parent / json.loads(record.read_text())["file"])["matrix"]
    committed = set(map(tuple, np.argwhere(np.isfinite(state)).tolist()))
    compute, known = clustered.distance_matrix, []
    monkeypatch.setattr(clustered, "distance_matrix", lambda *given: known.append(set(given[4])) or compute(*given))
    run(tmp_path / "killed", *CLIENTS)
    assert 3 <= len(committed) < 66 and known == [committed]
    assert result_of(tmp_path / "killed")["matrix"] == result_of(tmp_path / "alone")["matrix"]
    assert {path.name for path in record.parent.iterdir()} == {"info.json", "tensors.safetensors"}
