"""Runs as pandas frames: a tidy row per run and metric."""

import numpy as np
import pandas as pd
import pytest

import knot_runner as kr
from knot_runner.report.compare.settings import parse_filter, select_runs
from knot_runner.report.frame import IDENTITY, read_runs
from tests.contents import read_content
from tests.golden.messages import refuses
from tests.unit.report.compared import begun, diverged, failed, made, three_temperatures


@pytest.fixture
def runs(tmp_path):
    """Nine finished runs, and one of each other state."""
    three_temperatures(tmp_path)
    diverged(tmp_path, method__temperature=8, seed=0)
    failed(tmp_path, method__temperature=8, seed=1)
    begun(tmp_path, method__temperature=8, seed=2)
    (made(tmp_path, 0.9, method__temperature=8, seed=3) / "result.json").write_text('{"status": "done"')
    return read_runs(tmp_path)


def test_frame_has_one_row_per_run_and_metric(runs):
    frame = runs.frame()
    assert list(frame) == [*IDENTITY, "method.temperature", "metric", "value"]
    assert frame["seed"].dtype == "int64" and frame["method.temperature"].dtype == "float64"
    assert frame["value"].dtype == "float64"
    done = frame[frame["state"] == "done"]
    assert len(done) == 9 * done["metric"].nunique() and done["value"].notna().all()
    found = done[(done["metric"] == "metrics.accuracy.ALL")].set_index(["method.temperature", "seed"])["value"]
    wanted = {(t, s): 0.5 + 0.1 * i + 0.02 * s for i, t in enumerate((4, 1, 0.05)) for s in range(3)}
    assert found.to_dict() == wanted


def test_frame_values_equal_result_values(tmp_path):
    folder = made(tmp_path, 1 / 3, {"target": None, "notes": ["x"]})
    result, frame = read_content(folder), read_runs(tmp_path).frame().set_index("metric")
    assert frame.loc["seconds.total", "value"] == result["seconds"]["total"]
    assert frame.loc["metrics.accuracy.ALL", "value"] == 1 / 3
    assert not {"target", "rounds_to_target", "seed", "threads", "notes"} & set(frame.index)  # nulls, and no measures
    assert set(frame["folder"]) == {str(folder)} and set(frame["run_id"]) == {folder.name}


def test_frame_explains_runs_that_are_not_done(runs):
    frame = runs.frame()
    rest = frame[frame["state"] != "done"]
    assert sorted(rest["state"]) == ["damaged", "diverged", "failed", "unfinished"] and rest["folder"].is_unique
    assert rest[["metric", "value"]].isna().all(axis=None)
    problems = rest.set_index("state")["problem"]
    assert "cannot be read" in problems["damaged"] and problems["unfinished"] == "not run yet"
    assert (frame.loc[frame["state"] == "done", "problem"] == "").all()
    assert (rest["method.temperature"] == 8).all()


def test_frame_has_the_settings_that_differ(tmp_path):
    made(tmp_path, 0.5, method__mu=0.1, training__lr="1e-3")
    made(tmp_path, 0.6, method__name="other", training__rounds=4)
    frame = read_runs(tmp_path).frame()
    assert {"method.mu", "training.rounds", "training.lr"} < set(frame) and "partition.num_clients" not in frame
    assert frame["training.rounds"].dtype == "Int64"
    by_method = frame.drop_duplicates("method").set_index("method")
    assert by_method["method.mu"].isna().to_dict() == {"fedavg_chill": False, "other": True}
    assert by_method["training.lr"].to_dict() == {"fedavg_chill": 0.001, "other": 0.01}


def test_selected_runs_are_those_of_the_filters(runs):
    kept, lines = select_runs(runs, [parse_filter("method.temperature<=1"), parse_filter("seed=0,7")])
    frame = kept.frame()
    assert len(frame["folder"].unique()) == 2 and set(frame["seed"]) == {0} and len(lines) == 1
    assert set(kept.metrics.index) == set(kept.runs.index)
    assert set(np.unique(frame["method.temperature"])) == {0.05, 1.0}
    pd.testing.assert_frame_equal(kr.runs("method.temperature<=1 seed=0,7", out=runs.out).frame(), frame)
    assert [str(run.folder) for run in kr.runs("method.temperature<=1 seed=0", out=runs.out)] == list(
        frame["folder"].unique()
    )
    with refuses():
        kr.runs("seed=77", out=runs.out).frame()
