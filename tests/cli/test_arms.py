"""Arms of a preset: names, each with its overrides."""

from __future__ import annotations

from pathlib import Path

import pytest

from knot_runner.composing.commands import compose_all
from knot_runner.composing.job import ComposedJob
from tests.golden.messages import refuses

PRESET = """\
# @package _global_
# knot-runner experiment=mine/arms
# Fine-tuning and what holds it near
defaults:
  - override /task: femnist
  - override /method: finetune
sweep:
  arms:
    plain: {method: finetune}
    near: {method: finetune, method.personalization.prox: 0.1}
    two: {method: fedmd, method.models: [cnn_4, cnn_8], partition.transfer: 0.2, method.server_distillation.lr: 0.01}
    sinkhorn: {method: feddf, base/loss@method.server_distillation.loss: sinkhorn}
    again: {method: finetune}
    ARM
  seed: 0,1
report:
  kind: grid
  metrics: [accuracy]
  claims:
    - {text: Near, source: ours, measure: accuracy, of: {arm: near}, against: {arm: plain}, expect: higher}
"""


@pytest.fixture(scope="module")
def preset(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return written(tmp_path_factory.mktemp("arms"))


def written(folder: Path, arm: str = "last: {method: fedavg}") -> list[str]:
    path = folder / "conf" / "experiment" / "mine" / "arms.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(PRESET.replace("ARM", arm))
    return [f"--config-dir={folder / 'conf'}", "experiment=mine/arms"]


def composed(*words: str) -> list[ComposedJob]:
    return compose_all(list(words))[0]


def test_arms_become_jobs_with_their_overrides(preset: list[str]) -> None:
    jobs = composed(*preset)
    assert [(job.arm, job.settings.seed) for job in jobs[:3]] == [("plain", 0), ("plain", 1), ("near", 0)]
    by_arm = {job.arm: job for job in jobs}
    assert len(jobs) == 12 and {arm: job.label for arm, job in by_arm.items()} == {arm: f"arm={arm}" for arm in by_arm}
    assert by_arm["plain"].method.personalization.prox == 0.0 and by_arm["near"].method.personalization.prox == 0.1
    assert by_arm["two"].method.models != [] and by_arm["two"].settings.held_out.transfer == 0.2
    assert by_arm["sinkhorn"].method.server_distillation.loss.name == "sinkhorn"


def test_arm_run_id_matches_typed_overrides(preset: list[str]) -> None:
    near, other = composed(*preset, "arm=near", "seed=0"), composed(*preset, "arm='again','plain'", "seed=0")
    (typed,) = composed("task=femnist", "method=finetune", "method.personalization.prox=0.1")
    assert [job.run_id for job in near] == [typed.run_id] and "arm" not in near[0].own_config
    assert other[0].run_id == other[1].run_id != typed.run_id  # of two names


@pytest.mark.parametrize("words", ["arm=naer", "arm=near method=soup", "method.personalization.prox=1"])
def test_arms_that_do_not_fit_are_refused(words: str, preset: list[str]) -> None:
    with refuses():
        composed(*preset, *words.split())


@pytest.mark.parametrize("arm", [
    "lrs: {training.lr: '0.1,0.2'}", "lrs: {training.lr: 'range(1,3)'}", "flat: fedavg", "typo: {method.temprature: 2}",
])  # fmt: skip
def test_invalid_arms_are_refused(arm: str, tmp_path: Path) -> None:
    with refuses():
        composed(*written(tmp_path, arm))


def test_derived_preset_adds_and_selects_arms() -> None:
    jobs = composed("experiment=federated/feddf_terms", "partition.alpha=1", "seed=0")
    assert [job.arm for job in jobs] == ["fedavg", "feddf", "kd", "rkd"]
