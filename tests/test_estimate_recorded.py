"""What finished runs say of runs of their kind."""

from __future__ import annotations

import yaml

from knot_runner.composing.commands import compose_all
from knot_runner.estimate.pieces import in_family, load_of, round_kind
from knot_runner.estimate.recorded import recorded_costs, run_space
from knot_runner.records import write_result, write_sealed
from tests.tiny import TINY, TINY_IMAGES


def finish(job, **result):
    """The records of a run of ``job``, as a finished run leaves them."""
    job.folder.mkdir(parents=True, exist_ok=True)
    (job.folder / "config.yaml").write_text(yaml.safe_dump(job.config))
    write_result(job.folder, {"status": "done", **result})


def federated(job, total, rounds, count=3):
    finish(job, kind="federated", engine="lean", rounds=count, seconds={"total": total, "rounds": rounds})


def compose(out, *overrides, base=TINY_IMAGES):
    jobs, _ = compose_all([*base, f"paths.out={out}", *overrides])
    return jobs


def test_medians_over_runs_of_the_kind_alone(tmp_path):
    seeds = compose(tmp_path, "seed=1,2,3", "method=fedavg_chill", "method.temperature=0.5")
    for job, (total, rounds) in zip(seeds, [(5.0, 3.0), (7.0, 6.0), (50.0, 45.0)], strict=True):
        federated(job, total, rounds)
    (other,) = compose(tmp_path, "training.batch=4")  # another batch, another kind
    federated(other, 900.0, 900.0)
    (asked,) = compose(tmp_path, "training.rounds=100", "training.lr=0.1", "seed=9")
    found = recorded_costs([asked], 2)
    cost = found[round_kind(asked.config)]
    assert (cost.start, cost.unit, cost.source) == (2.0, 2.0, "3 recorded runs")
    (piece,) = [piece for piece in load_of(asked).pieces if piece.kind]
    assert cost.seconds(piece) == 2.0 + 100 * 2.0


def test_a_resumed_run_whose_last_session_was_short(tmp_path):
    (job,) = compose(tmp_path)
    federated(job, 1.0, 6.0)
    assert recorded_costs([job], 2)[round_kind(job.config)].start == 0.0


def test_damaged_foreign_and_diverged_records_say_nothing(tmp_path):
    damaged, diverged, bare, cut = compose(tmp_path, "seed=1,2,3,4")
    federated(damaged, 1.0, 1.0)
    (damaged.folder / "result.json").write_text('{"status": "done"')
    finish(diverged, kind="federated", engine="lean", rounds=3, seconds={})
    finish(bare, kind="federated")
    federated(cut, 3.0, 3.0)
    (cut.folder / "config.yaml").write_text("seed: [")
    assert recorded_costs(compose(tmp_path, "seed=9"), 2) == {}


def test_stages_of_texts_per_epoch(tmp_path):
    (job,) = compose(tmp_path, "training.local.epochs=4", base=TINY)
    job.folder.mkdir(parents=True)
    (job.folder / "model.safetensors").write_bytes(b"x" * 50)
    stages = {"local Cell": 8.0, "pretrain Food": 3.0, "distil student": 5.0, "soft_labels Cell": 1.0}
    finish(job, seconds={"total": 20.0, "stages": stages})
    (asked,) = compose(tmp_path, "seed=5", "training.local.epochs=40", base=TINY)
    found = {
        kind.removeprefix(in_family(asked.config, "")): cost.unit for kind, cost in recorded_costs([asked], 2).items()
    }
    assert found == {
        "teacher Cell, batch 64": 2.0,
        "teacher Food, batch 64": 3.0,
        "distillation, sinkhorn newton, batch 16": 2.5,
    }


def test_only_the_rounds_that_are_left_count(tmp_path):
    (job,) = compose(tmp_path, "training.rounds=100")
    (job.folder / "training").mkdir(parents=True)
    write_sealed(job.folder / "training" / "commit.json", {"step": 29})
    (piece,) = [piece for piece in load_of(job).pieces if piece.kind]
    assert piece.units == 70


def test_the_space_of_a_run_at_work_is_two_commits_and_the_model(tmp_path):
    for name, size in (("model.safetensors", 100), ("state-0.safetensors", 90), ("rounds.jsonl", 7)):
        (tmp_path / name).write_bytes(b"x" * size)
    assert run_space(tmp_path) == 307 and run_space(tmp_path / "none") == 0
