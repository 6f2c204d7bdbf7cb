"""The line that says what a table's numbers were made with follows the composed settings."""

from knot_runner.compose import compose_jobs
from knot_runner.report.made_with import made_with


def said(*overrides):
    return made_with([job.config for job in compose_jobs(list(overrides), None)])


def test_names_what_was_changed():
    line = said(
        "task=erc", "task.context=0", "training.distil.epochs=7", "task.max_length=64", "method=entropy_a,sinkhorn_e"
    )
    for words in ("up to 64 tokens, the utterance only", "distillation 7 epochs", "raw weights", "entropy: kl",
                  "sinkhorn: newton, epsilon 0.001", "2,000 random texts"):  # fmt: skip
        assert words in line


def test_the_published_schedule_is_called_so():
    assert "sinkhorn: geomloss with scaling 0.5" in said("method.loss.solver=geomloss")


def test_without_distillation_there_is_nothing_of_it():
    assert "distillation" not in said("method=teachers")
