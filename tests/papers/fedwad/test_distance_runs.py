"""One federated distance as a run: its record against POT and against the algorithm by hand, and its two presets."""

import dataclasses
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import ot
import pytest
from safetensors.numpy import load_file

from knot_runner import compose
from knot_runner.cli.main import main
from knot_runner.config.strict import build, content_of
from knot_runner.engine.seeds import numpy_generator
from knot_runner.papers.fedwad import distance
from knot_runner.papers.fedwad.distance import draw_gaussians
from knot_runner.papers.fedwad.results import Spent
from knot_runner.papers.fedwad.settings import GaussiansSettings
from knot_runner.pipelines.context import RunContext
from knot_runner.pipelines.run import complete_run
from knot_runner.records import require_result
from knot_runner.transport.federated.fedwad import distance_between
from knot_runner.transport.federated.measure import Measure, wasserstein
from tests.contents import problem_of
from tests.golden.messages import refuses
from tests.tiny import DISTANCE

PRIVACY = "method.fedwad.privacy={mechanism: gaussian, epsilon: 500, delta: 1e-5, clip: 10}"
#: Of the toy at S = 2, 10, 200: relative gap to the exact distance in the facts sheet (K = 20, covariance 0.2).
GAPS = {2: 1.6e-2, 10: 4.0e-3, 200: 9.5e-5}


def context(out, *overrides, said=None):
    (job,) = compose([*DISTANCE, f"paths.output_dir={out}", *overrides])
    note = [].append if said is None else said.append
    return RunContext(job.settings, job.method, job.folder, "", job.run_id, lambda *_: None, note)


def test_distance_run_is_pots_and_the_algorithms(tmp_path):
    one = context(tmp_path, "task.ratio=3")
    result, kept = complete_run(one), load_file(one.folder / "measures.safetensors")
    task = draw_gaussians(one.settings.task, 0)
    cost = ot.dist(task.first, task.second)
    assert result.exact == pytest.approx(ot.emd2([], [], cost) ** 0.5, rel=1e-9)
    draws, sides = (
        partial(numpy_generator, one.settings.seed, "federated distance"),
        (Measure(task.first), Measure(task.second)),
    )
    expected = distance_between(*sides, one.method.fedwad, draws, trace=True)
    assert result.value == expected.value == result.values[-1] >= result.exact
    assert (result.sums, result.server_only) == (list(expected.sums), list(expected.server_only))
    assert result.samples == [24, 8] and result.support == [4, 4, 4]
    assert result.closed_form == one.settings.task.offset
    assert kept["mu"] == pytest.approx(task.first, abs=1e-6) and kept["nu"] == pytest.approx(task.second, abs=1e-6)
    assert kept["xi/3"] == pytest.approx(expected.xi.points, abs=1e-6)
    assert all(kept[f"weights/{k}"].sum() == pytest.approx(1) for k in range(4))
    assert not problem_of(content_of(result))


def test_distance_run_repeats(tmp_path):
    first, second = (complete_run(context(tmp_path / name)) for name in "ab")
    assert replace(first, seconds=second.seconds, digest=second.digest) == second
    assert first.seconds.federated > 0 and first.seconds.exact > 0
    assert complete_run(context(tmp_path / "c", "seed=1")).value != first.value


@pytest.mark.parametrize(("ratio", "samples"), [(1, [24, 24]), (3, [24, 8])])
def test_exact_mode_starts_at_sample_size_ignoring_support(tmp_path, ratio, samples):
    words = "method.fedwad.mode=exact", f"task.ratio={ratio}"
    runs = [context(tmp_path, *words, f"method.fedwad.support={s}") for s in (4, 100)]
    assert runs[0].run_id == runs[1].run_id  # so a grid of supports has one run of exact mode
    result = complete_run(runs[0])
    assert result.samples == samples and (ratio > 1 or result.support == [24, 24, 24])
    assert len(load_file(runs[0].folder / "measures.safetensors")["xi/0"]) == 24


def test_random_t_leaves_server_only_empty(tmp_path):
    result = complete_run(context(tmp_path, "method.fedwad.t=random"))
    assert result.server_only == [] and not problem_of(content_of(result))


def test_distance_run_records_spent_privacy_budget(tmp_path):
    said = []
    result = complete_run(context(tmp_path, PRIVACY, said=said))
    assert result.spent == Spent(4 * 500, pytest.approx(4e-5))  # three measures and one distance
    assert result.notes == said and "traced run, which releases more" in said[0]
    with refuses():
        complete_run(context(tmp_path, PRIVACY, "method.fedwad.mode=exact"))


def test_distance_run_records_suboptimal_plan_warning(tmp_path, monkeypatch):
    def stopped(first, second):
        warnings.warn("network simplex stopped after 3 pivots", RuntimeWarning, stacklevel=2)
        return wasserstein(first, second)

    monkeypatch.setattr(distance, "wasserstein", stopped)
    assert complete_run(context(tmp_path)).notes == ["network simplex stopped after 3 pivots"]


def test_large_distance_run_keeps_only_end_measures(tmp_path):
    one = context(tmp_path, "task.samples=300", "task.dimension=50", "method.fedwad.support=300")
    complete_run(one)
    kept = {key for key in load_file(one.folder / "measures.safetensors") if key.startswith("xi")}
    assert kept == {"xi/0", "xi/1", "xi/3"}


@pytest.mark.thorough
def test_toy_preset_matches_paper_gaps(tmp_path, capsys):
    few = [f"paths.output_dir={tmp_path}", "seed=0", "method.fedwad.support=2,10"]
    assert main(["experiment=fedwad/toy", *few]) == 0
    shown = capsys.readouterr()
    assert "3 done, 0 failed (1 more jobs of the grid are identical to these)" in shown.err
    assert (tmp_path / "figures" / "fedwad/toy.png").read_bytes()[:4] == b"\x89PNG"
    results = [require_result(path.parent) for path in tmp_path.glob("gaussians/*/*/result.json")]
    assert sorted(result.support[0] for result in results) == [2, 10, 200]  # exact mode once
    for result in results:
        assert result.value / result.exact - 1 == pytest.approx(GAPS[result.support[0]], rel=0.3)
        assert np.diff(result.sums).max() < 1e-9 * result.exact  # Theorem 2
    assert main(["plot", "fedwad/toy", *few]) == 0
    assert capsys.readouterr().out == shown.out  # a preset that has run shows its figure


TOY = GaussiansSettings("gaussians", "gaussians", "generated", 200, 1, 2, 0.2, 4 * 2**0.5)


def drawn(seed: int = 0, **changes):
    return draw_gaussians(dataclasses.replace(TOY, **changes), seed)


def test_draw_gaussians_repeats_with_independent_streams() -> None:
    one = drawn()
    assert one.first.shape == one.second.shape == (200, 2) and one.first.dtype == one.second.dtype == np.float64
    assert one.digest == drawn().digest != drawn(1).digest
    fewer = drawn(ratio=3, offset=1.0)
    assert (fewer.first == one.first).all() and len(fewer.second) == 66
    assert (drawn(ratio=3).second == one.second[:66]).all()


@pytest.mark.parametrize("dimension", [1, 2, 50])
def test_draw_gaussians_offsets_the_means(dimension: int) -> None:
    task = drawn(covariance=1e-20, offset=4.0, dimension=dimension)
    apart = task.second.mean(0) - task.first.mean(0)
    assert np.linalg.norm(apart) == pytest.approx(4) and task.distance == 4.0
    assert apart == pytest.approx(np.full(dimension, 4 / dimension**0.5))


def test_draw_gaussians_has_the_covariance() -> None:
    task = drawn(samples=40_000, covariance=0.3)
    for sample in (task.first, task.second):
        assert np.cov(sample.T) == pytest.approx(0.3 * np.eye(2), abs=0.01)  # standard error .002
    between = np.corrcoef(task.first.T, task.second.T)[:2, 2:]
    assert np.abs(between).max() < 0.025  # standard error .005


@pytest.mark.parametrize(("key", "value"), [("samples", 0), ("ratio", 300), ("covariance", 0.0)])
def test_gaussians_settings_refuse(key: str, value: float) -> None:
    with refuses():
        build(GaussiansSettings, dataclasses.asdict(TOY) | {key: value}, "task")
