"""The line that says what a table's numbers were made with follows the composed settings."""

from knot_runner.composing.commands import compose_jobs
from knot_runner.report.tables.made_with import made_with


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


def test_federated_settings_in_one_line():
    line = said("task=cifar10", "method=fedavg_chill", "training.weight_decay=0.0001", "method.aggregation=uniform")
    assert line == (
        "ours: cifar10 (task.source=embedded), 50 clients by dirichlet (alpha 0.5, floor 10), cnn_mcmahan; fedavg: 300 "
        "rounds of 10 clients, 10 epochs of batch 16 at rate 0.001, weight decay 0.0001, uniform mean, engine lean."
    )


def test_what_tasks_share_is_said_once_and_what_differs_by_task():
    shared = said("task=femnist,cifar100", "task.limit=2000", "method=fedavg_chill", "training=chill")
    assert shared.count("300 rounds") == 1 and shared.count("at most 2,000 training images") == 2
    assert "all clients by natural (by user)" in shared
    apart = said("task=cifar10", "method=fedavg_chill", "partition=centralised,iid", "training.rounds=10,20")
    assert apart.count("10 rounds") == 2 and apart.count("one client with everything") == 2


def test_how_clients_were_grouped_is_said_once():
    methods = "method=clustered_fedavg,clustered_fedrep"
    line = said("task=mnist_fedwad", methods, "method.clustering.graph=none,affinity,sparse3")
    assert "; fedavg, fedrep: 10 rounds of 0.1 clients" in line
    assert line.count("clusters: 5, by distances with sqrt_frobenius (root_diagonal), K=10, t 0.5") == 1
    assert "clusters" not in said("task=mnist_fedwad", "method.clustering.graph=none")


def test_rounds_of_texts_name_their_tokens_and_their_optimiser():
    texts = ["task=erc", "task.context=0", "task.max_length=32", "task.limit=2000", "model=bert_tiny_plain"]
    assert said(*texts, "method=fedavg_chill", "training=texts", "partition=small", "training.rounds=8") == (
        "ours: erc (task.source=embedded, at most 2,000 rows per split), texts of up to 32 tokens, the utterance only, "
        "10 clients by dirichlet (alpha 0.5, floor 0), bert_tiny_plain (plain head), weights: scratch, "
        "vocabulary: train; fedavg: 8 rounds of 1.0 clients, 1 epochs of batch 32 at rate 0.0005, "
        "weight decay 0.01, AdamW, weighted mean, engine lean."
    )
