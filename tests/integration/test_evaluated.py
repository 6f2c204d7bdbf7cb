"""Every result names the models that were evaluated, and no column of a table mixes several kinds of models."""

import dataclasses
from pathlib import Path

import pytest

from knot_runner import METHODS
from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_all
from knot_runner.config.settings.methods.algorithms import FEDERATED_ALGORITHMS
from knot_runner.pipelines.context import Services, run_context
from knot_runner.pipelines.run import complete_run
from knot_runner.records import require_result
from knot_runner.report.records.run_summary import summary_table
from tests.runs import command
from tests.tiny import TINY_IMAGES, TINY_PARTIES, TINY_TAUGHT, replaced
from tests.unit.report import compared
from tests.unit.report.claimed import claim, judged
from tests.unit.report.made_runs import FederatedFactory, build_table, shown

ONE, OWN, CLUSTERS = "global", "personalized", "clusters"
PRIVATE = {"unit": "client", "rate": 0.5, "noise_multiplier": 1.0, "clip_norm": 1.0, "rounds": 3, "clipped": None,
           "accountant": "x", "median_norm": None}  # fmt: skip
POISSON = {**PRIVATE, "neighbors": "add or remove", "sampling": "poisson", "delta": 0.01, "epsilon": 1.2}
FIXED = {**PRIVATE, "neighbors": "replace", "sampling": "fixed", "delta": 0.01, "epsilon": 7.3}

#: Methods of a plug-in: local training's and FedAvg's functions under names of its own.
PLUGIN = """
import dataclasses
import knot_runner as kr
kr.METHODS["mine"] = kr.METHODS["local"]
kr.METHODS["same"] = kr.METHODS["fedavg"]
kr.METHODS["wrong"] = dataclasses.replace(kr.METHODS["local"], one_model=True)
"""


@pytest.fixture
def plugin(tmp_path):
    """The override that loads the plug-in."""
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN)
    return f"plugins=['{path}']"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fedavg", ONE), ("fedsoup", OWN), ("finetune", OWN), ("soup", OWN), ("clustered_fedavg", CLUSTERS),
        ("clustered_fedavg method.clustering.graph=none", ONE), ("clustered_fedper", OWN),
        ("fedavg model=resnet8_slim method.batchnorm=local training.rounds=1", OWN),
        ("fedavg method.shared=['!head']", OWN),
        ("fedavg method.algorithm=mine", OWN), ("fedavg method.algorithm=same", ONE),
    ],
)  # fmt: skip
def test_federated_results_name_measured_models(tmp_path, capsys, plugin, words, expected):
    small = [*TINY_IMAGES, plugin, "training.small_clients=allow"]
    if "resnet" in words:
        small = [word for word in small if not word.startswith("model.hidden")]
    given = replaced(small, "training.target=0.01", *replaced(["training.local_epochs=1"], *f"method={words}".split()))
    result = command(tmp_path, *given).result
    assert result["evaluated"] == expected
    selects = words in ("fedsoup", "soup")  # and nothing is held out for methods that do not
    assert result.get("selected_on") == ("valid" if selects else None) and ("valid" in result["datasets"]) == selects
    said = " ".join(capsys.readouterr().out.split())
    words_of = {ONE: "one global model, on all test examples", OWN: "own models, each on its own test examples"}
    assert words_of.get(expected, "cluster models, each on its clients' test examples") in said
    of = {ONE: "one model", OWN: "own models", CLUSTERS: "cluster models"}[expected]
    assert f"target 0.010 (accuracy of {of})" in said


def test_methods_with_a_model_of_each_client_say_so():
    own = {"ditto", "apfl", "fedala", "fedsoup", "fedrep", "fedper", "local", "fedmd", "feddistill"}
    assert {name for name in FEDERATED_ALGORITHMS if not METHODS[name].one_model} == own


def test_one_model_rejects_clients_with_different_models(tmp_path, capsys, plugin):
    assert main([*TINY_IMAGES, plugin, "method=fedavg", "method.algorithm=wrong", f"paths.output_dir={tmp_path}"]) == 2
    assert "the clients use different models, but one_model=True" in capsys.readouterr().err


def federated(root: Path) -> list:
    """Return two runs of a method with a global model, and two of a method with a model per client."""
    factory, jobs = FederatedFactory(root), []
    for place, (method, evaluated) in enumerate((("fedavg", ONE), ("ditto", OWN))):
        for seed in (0, 1):
            job = factory.job(seed=seed, label=f"method.name={method}")
            config = {**job.config, "method": {**job.config["method"], "name": method}, "seed": seed}
            folder = root / "femnist" / method / f"{job.run_id}{place}"
            job = dataclasses.replace(job, run_id=folder.name, folder=folder, method=method, label="", config=config)
            jobs.append(factory.write(job, [0.2, 0.3 + 0.1 * place], evaluated=evaluated))
    return jobs


def test_grid_table_separates_columns_by_measured_models(tmp_path):
    jobs = federated(tmp_path)
    table = build_table(jobs, None, ["accuracy", "f1"], kind="grid")
    heads = [group.heading(0) for group in table.groups]
    assert heads == ["accuracy (one model)", "accuracy (own models)", "macro F1 (one model)", "macro F1 (own models)"]
    means = [[row.cells[group.key][0].mean for group in table.groups[:2]] for row in table.rows]
    assert means == [[pytest.approx(0.3), None], [None, pytest.approx(0.4)]]
    line = "Measured: one global model, on all test examples; own models, each on its own test examples."
    assert line in table.lines
    (alone,) = build_table(jobs[2:], None, ["accuracy"], kind="grid").groups
    assert alone.heading(0) == "accuracy"


def test_grid_table_separates_seeds_by_measured_models(tmp_path):
    factory = FederatedFactory(tmp_path)
    jobs = [factory.write(factory.job(seed=seed), [0.2 + 0.2 * seed], evaluated=(ONE, OWN)[seed]) for seed in (0, 1)]
    (row,) = build_table(jobs, None, ["accuracy"], kind="grid").rows
    assert [cell.mean for (cell,) in row.cells.values()] == [pytest.approx(0.2), pytest.approx(0.4)]


@pytest.mark.parametrize("spent", [[FIXED], [POISSON, FIXED], [FIXED, {**FIXED, "delta": 1e-5, "epsilon": 12.0}]])
def test_grid_table_separates_epsilon_by_relation_and_delta(tmp_path, spent):
    factory, jobs = FederatedFactory(tmp_path), []
    for place, privacy in enumerate(spent):
        job = factory.job(label=f"privacy={place}")
        measured = factory.result(job, factory.rows(job, [0.5]))["metrics"] | {"epsilon": {"ALL": privacy["epsilon"]}}
        jobs.append(factory.write(job, [0.5], metrics=measured, privacy=privacy))
    table = build_table(jobs, None, ["epsilon", "accuracy"], kind="grid")
    own = [group for group in table.groups if group.key.startswith("epsilon")]
    heads = [f"epsilon ({one['neighbors']}, delta {one['delta']:g})" for one in spent]
    assert [group.heading(0) for group in own] == heads
    means = [[row.cells[group.key][0].mean for group in own] for row in table.rows]
    assert means == [[one["epsilon"] if i == j else None for j in range(len(own))] for i, one in enumerate(spent)]


@pytest.mark.paper("chill")
def test_temperatures_table_separates_cases_by_measured_models(tmp_path):
    table = build_table(
        federated(tmp_path), None, ["accuracy", "rounds"], kind="temperatures", options={"target": 0.25}
    )
    assert {group.block for group in table.groups} == {"femnist, femnist_dnn", "femnist, femnist_dnn, own models"}


def test_claims_and_summaries_say_what_was_measured(tmp_path):
    jobs = federated(tmp_path)
    sides = {"of": {"method.name": "ditto"}, "against": {"method.name": "fedavg"}}
    (verdict,) = judged(jobs, claim(measure="plain_loss", expect="lower", **sides))
    assert "the runs are evaluated differently (own models; one model)" in verdict.note
    (same,) = judged(jobs, claim(measure="result.seconds.total", **sides))
    assert "evaluated differently" not in same.note
    text = shown(summary_table(require_result(jobs[2].folder)))
    assert "own models, each on its own test examples" in text


@pytest.mark.parametrize(
    ("first", "second", "measure", "expected"),
    [
        ({"evaluated": ONE}, {"evaluated": OWN}, "accuracy", ["accuracy (one model)", "accuracy (own models)"]),
        ({"evaluated": ONE}, {"evaluated": ONE}, "accuracy", ["accuracy"]),
        ({"evaluated": CLUSTERS}, {"evaluated": OWN}, "f1", ["f1 (cluster models)", "f1 (own models)"]),
        ({"evaluated": ONE}, {"evaluated": OWN}, "best.accuracy",
         ["best.accuracy (one model)", "best.accuracy (own models)"]),
        ({"evaluated": ONE}, {"evaluated": OWN}, "client_accuracy.weighted", ["client_accuracy.weighted"]),
        ({"evaluated": ONE}, {"evaluated": OWN}, "seconds", ["seconds.total"]),
        ({"privacy": POISSON}, {"privacy": FIXED}, "privacy.epsilon",
         ["privacy.epsilon (add or remove, delta 0.01)", "privacy.epsilon (replace, delta 0.01)"]),
        ({"privacy": POISSON}, {"privacy": {**POISSON, "delta": 0.02}}, "privacy.epsilon",
         ["privacy.epsilon (add or remove, delta 0.01)", "privacy.epsilon (add or remove, delta 0.02)"]),
        ({"privacy": FIXED}, {"privacy": FIXED}, "privacy.epsilon", ["privacy.epsilon (replace, delta 0.01)"]),
    ],
)  # fmt: skip
def test_compare_separates_columns_by_models_and_privacy_relations(tmp_path, first, second, measure, expected):
    for accuracy, told, name in ((0.5, first, "fedavg"), (0.7, second, "fedprox")):
        compared.made(tmp_path, accuracy, told, method__name=name)
    table = compared.ask(tmp_path, measures=(measure,))
    measures = table.groups
    assert sorted(group.title for group in measures) == sorted(expected)
    assert all(sum(row.cells[group.key][0].n for row in table.rows) == 2 / len(expected) for group in measures)


def test_compare_refuses_to_rank_several_kinds(tmp_path, capsys):
    for accuracy, evaluated, name in ((0.5, ONE, "fedavg"), (0.7, OWN, "fedprox")):
        compared.made(tmp_path, accuracy, {"evaluated": evaluated}, method__name=name)
    assert main(["compare", f"paths.output_dir={tmp_path}", "--best=accuracy", "--over=method.name"]) == 2
    assert "--best=accuracy: a row mixes several kinds" in capsys.readouterr().err


def other_labels(examples):
    """Return the same test examples with each label shifted to the next class."""
    return dataclasses.replace(examples, labels=(examples.labels + 1) % (examples.labels.max() + 1))


def images_of_other_labels(*arguments):
    task = Services().images(*arguments)
    return dataclasses.replace(task, test=other_labels(task.test))


def texts_of_other_labels(*arguments):
    task = Services().parties(*arguments)
    for data in task.datasets.values():
        if "test" in data.splits:
            data.splits["test"] = other_labels(data.splits["test"])
    return task


IID = [word for word in TINY_IMAGES if not word.startswith("partition.")]
IID += ["partition=iid", "partition.num_clients=6", "training.lr=0.1"]


@pytest.mark.parametrize("words", [
    [*IID, "method=soup", "method.personalization.epochs=2", "method.personalization.checkpoints=2"],
    [*IID, "method=fedsoup"], TINY_PARTIES,
], ids=["soup", "fedsoup", "KNOT"])  # fmt: skip
def test_labels_of_test_examples_select_nothing(words, tmp_path):
    """With other test labels, the same epoch and models are selected, and only the metrics differ."""
    found = []
    for name, services in (("a", Services()), ("b", Services(images_of_other_labels, parties=texts_of_other_labels))):
        (job,), _ = compose_all([*words, f"paths.output_dir={tmp_path / name}"])
        result = complete_run(run_context(job, lambda *_: None, lambda _: None, services=services))
        weights = {path.name: path.read_bytes() for path in job.folder.glob("*models*.safetensors")}
        found.append((result, weights | {"model": (job.folder / "model.safetensors").read_bytes()}))
    (one, weights), (other, same) = found
    assert one.selected_on == "valid" and one.metrics != other.metrics and weights == same


@pytest.mark.parametrize("words", [TINY_TAUGHT, TINY_PARTIES], ids=["kd", "KNOT"])
@pytest.mark.parametrize("stage", ["distill", None])
def test_distillation_holds_out_examples_only_to_select(words, stage, tmp_path):
    stages = ("local", "distill", *(["pretrain"] if words is TINY_PARTIES else []))
    selects = [f"training.{name}.select={'best' if name == stage else 'last'}" for name in stages]
    folder = command(tmp_path, *words, *selects).folder
    result = require_result(folder)
    sizes = [(data.train, data.valid or 0) for data in result.datasets.values()]
    log = (folder / "rounds.jsonl").read_text()
    assert result.evaluated == ONE
    assert result.selected_on == (stage and "valid") and ('"student"' in log or '"loss"' in log) == (stage is not None)
    share = 0.1 if stage else 0
    assert all(valid == pytest.approx(share * (train + valid), abs=stage is not None) for train, valid in sizes)
    total = max(map(sum, sizes)) if words is TINY_TAUGHT else sum(map(sum, sizes))
    assert total == (150 if words is TINY_TAUGHT else 400)  # kd trains all models on one pool
