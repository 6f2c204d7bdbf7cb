"""Random compositions of task, partition, model, method, options and engine, made from a seed.

    python -m tests.compositions --count 500 --run 60     counts, and what was wrong; exit code 1 where anything was

Each composes, or is refused in one line. Of those that compose, some are run for a round or a stage on generated texts
and scikit-learn's digits; a federated one ends with the weights of ``engine=loop`` in float64.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter
from pathlib import Path

from safetensors.torch import load_file

from knot_runner.composing.commands import compose_jobs
from knot_runner.config.settings.families import family_of
from knot_runner.util.config_yaml import choices
from tests.fuzz_commands import Outcome, outcome
from tests.tiny import CLUSTERING, FEDDF_RKD, FEDDF_SINKHORN_E

#: Tasks that are run, and options that make them small.
SMALL_IMAGES, SMALL_TEXTS = ["task.limit=240", "task.shape=[{channels},8,8]"], ["task.limit=60"]
TASKS = dict.fromkeys(("mnist", "femnist", "cifar10", "fashionmnist"), SMALL_IMAGES) | dict.fromkeys(
    ("erc", "sa", "nli"), SMALL_TEXTS
)
TINY_BERT = "model.hidden=16 model.layers=1 model.intermediate=32 model.vocab_size=600"
MODELS = {
    "mlp_notebook": "model.hidden=[12]", "femnist_dnn": "model.hidden=[12,8]", "bert_tiny": TINY_BERT,
    "cnn_mcmahan": "model.hidden=[12] model.convs=[{channels:4,kernel:3,padding:1}]", "bert_tiny_plain": TINY_BERT,
    "resnet18": "model.width=4 model.blocks=[1,1]", "resnet18_gn": "model.width=4 model.blocks=[1,1] model.groups=2",
}  # fmt: skip
PARTITIONS = {
    "iid": "partition.clients=3", "dirichlet": "partition.clients=3 partition.floor=1", "natural": "",
    "dirichlet_clients": "partition.clients=3", "dirichlet_nofloor": "partition.clients=3 partition.alpha=5.0",
    "shards": "partition.clients=3 partition.shards_per_client=3", "manual": "partition.clients=3 partition.mu=2.0",
    "pairs": "partition.clients=4 partition.groups=[[0,1],[2,3]]", "centralised": "",
}  # fmt: skip
#: Of rounds; each may come with any other, or be refused.
OPTIONS = [
    "method.temperature=0.25", "method.temperature=0.25 method.lr_control=true", "method.hard_temperature=0.5",
    "method.schedule={shape:linear,end:1.0,rounds:2} method.temperature=0.5", "training.weight_decay=0.01",
    "method.stragglers={share:0.5,temperature:0.5,epochs:1}", "method.server.optimiser=momentum",
    "method.server.optimiser=adam method.server.lr=0.01", "method.aggregation=uniform", "method.batchnorm=local",
    "training.stop_at_target=true training.target=0.9", "training.optimiser=adamw", "training.momentum=0.9",
    "training.participants=2", "fleet=phones fleet.dropout=0.5", "fleet=phones_partial fleet.deadline=3",
    "fleet=phones_async fleet.buffer=2",  # of 1 a server's student is its only teacher, see small()
    "privacy=user_level method.aggregation=uniform", "partition.valid=0.2", "evaluate.matrix=end",
    "privacy=user_level method.aggregation=uniform privacy.sampling=fixed privacy.noise_multiplier=0.5",
    "transfer=usps transfer.limit=60", "+method.personalisation.kind=finetune",
    "+method.personalisation.kind=soup +method.personalisation.epochs=2 +method.personalisation.saves=2",
]  # fmt: skip
#: Methods that put a piece on another algorithm, and the settings of some algorithms.
PIECES = ("feddf", "clustered_fedavg", "finetune", "soup")
ALGORITHMS = [
    "method.algorithm=fedprox method.mu=0.01", "method.algorithm=scaffold", "method.algorithm=fedper",
    "method.algorithm=ditto +method.ditto.lam=0.5", "method.algorithm=apfl +method.apfl.alpha=0.5",
]  # fmt: skip
#: Methods with pieces.
VARIANTS = [" ".join(words) for words in (FEDDF_SINKHORN_E, FEDDF_RKD, ["method=feddf", *CLUSTERING])]
#: Of distillations.
STAGE_OPTIONS = [
    "method.normalise=true", "method.student_temperature=2.0", "method.teacher_temperature=0.5", "task.geometry=onehot",
    "task.geometry=superclasses", "method.bias.noise=shuffled", "partition.server=0.3", "partition.transfer=0.4",
    "training.distil.select=last", "transfer=usps transfer.limit=60",
]  # fmt: skip
SMALL_ROUNDS = "rounds=2 training.epochs=2 training.small_clients=allow training.batch=16 training.participants=2"
SMALL_STAGES = "local.epochs=1 training.pretrain.epochs=1 training.distil.epochs=1"
SMALL_BIAS = ["method.bias.texts=20", "method.bias.tokens=20", "method.bias.images=40"]
ALWAYS = ["hardware.workers=1", "hardware.precision=float64"]


def compositions(count: int, seed: int) -> list[list[str]]:
    """``count`` compositions, the same for the same seed."""
    draw = random.Random(seed)
    methods = [*(f"method={name}" for name in choices("method")), *VARIANTS]
    return [_composition(draw, methods) for _ in range(count)]


def _composition(draw: random.Random, methods: list[str]) -> list[str]:
    """Nine of ten draws of a group are meant to fit the task and the method; the others are of all there are."""
    task, method = draw.choice(list(TASKS)), draw.choice(methods)
    on_images = TASKS[task] is SMALL_IMAGES
    stages = method.startswith(("method=entropy", "method=sinkhorn", "method=teachers"))
    anything = draw.random() < 0.1
    words = [f"task={task}", *method.split()]
    if words[1].removeprefix("method=") in PIECES and draw.random() < 0.7:
        words += draw.choice(ALGORITHMS).split()
    if anything or (draw.random() < 0.8 and (on_images or not stages)):
        partition = draw.choice(list(PARTITIONS))
        words += [f"partition={partition}", *PARTITIONS[partition].split()]
    if draw.random() < 0.7:
        model = draw.choice([name for name in MODELS if anything or name.startswith("bert") != on_images])
        words += [f"model={model}", *MODELS[model].split()]
    options = draw.sample(STAGE_OPTIONS if stages else OPTIONS, draw.choice([0, 0, 1, 1, 2]))
    if stages and not on_images and not anything:
        options = [one for one in options if not one.startswith(("task.geometry", "partition.", "transfer"))]
    words = _added(words, " ".join(options).split())
    return [*words, f"hardware.engine={draw.choice(['lean', 'loop', 'stacked', 'auto'])}", f"seed={draw.randint(0, 3)}"]


def _added(words: list[str], more: list[str]) -> list[str]:
    """``words`` and those of ``more`` whose keys are not given yet."""
    for word in more:
        if word.partition("=")[0] not in {one.partition("=")[0] for one in words}:
            words = [*words, word]
    return words


def composed(words: list[str], folder: Path) -> Outcome:
    """Whether ``words`` compose, as ``check`` says."""
    return outcome(["check", "--quick", *words, f"paths.out={folder}"])


def small(words: list[str]) -> list[str]:
    """``words`` on little data, for a round or an epoch a stage."""
    (job,) = compose_jobs(words, None)
    task, on_images = words[0].partition("=")[2], job.settings.on_images
    extra = [option.format(channels=job.settings.task.shape[0] if on_images else 0) for option in TASKS[task]]
    if not any(word.startswith("model=") for word in words):
        extra += MODELS.get(job.settings.model.name, "").split()
    if not any(word.startswith("partition=") for word in words) and on_images:
        extra += ["partition=dirichlet", *PARTITIONS["dirichlet"].split()]
    if getattr(job.method, "distil", None) and getattr(job.settings.partition, "kind", "") == "centralised":
        # the only client is its own student, whose gradients are all rounding, which Adam makes larger round by round
        extra.append("training.rounds=1")
    family = family_of(job.method)
    if family.trains and family.training == "rounds":
        extra += f"training.{SMALL_ROUNDS}".split()
    elif family.trains:
        extra += [*f"training.{SMALL_STAGES}".split(), *SMALL_BIAS]
    extra += ["method.head_epochs=1"] * bool(getattr(job.method, "head_epochs", None))
    extra += ["method.participants=2"] * hasattr(job.method, "participants")
    return _added(words, [*extra, *ALWAYS])


def run_small(words: list[str], folder: Path) -> tuple[Outcome, str]:
    """(What became of the run of :func:`small`, how it differs from the same by ``engine=loop``)."""
    command = small(words)
    found = outcome([*command, f"paths.out={folder / 'one'}"], carries_out=True)
    if found.wrong or found.code != 0 or "hardware.engine=loop" in words:
        return found, ""
    (result,) = (folder / "one").glob("*/*/*/result.json")
    if json.loads(result.read_text()).get("kind") != "federated":
        return found, ""
    plain = [word for word in command if not word.startswith("hardware.engine=")]
    other = outcome([*plain, "hardware.engine=loop", f"paths.out={folder / 'loop'}"], carries_out=True)
    if other.wrong or other.code != 0:
        return other, ""
    (reference,) = (folder / "loop").glob("*/*/*/result.json")
    return found, _difference(result.parent, reference.parent)


def _difference(one: Path, two: Path) -> str:
    """ "" where two finished runs have the same weights, up to the rounding of float64: Adam makes it larger where
    gradients are as small as its epsilon, so a server that distils may be a little further apart."""
    distils = json.loads((one / "result.json").read_text())["method"].startswith(("feddf", "fedgen"))
    weights = [load_file(folder / "model.safetensors") for folder in (one, two)]
    for name, tensor in weights[0].items():
        gap = float((tensor.double() - weights[1][name].double()).abs().max()) if tensor.numel() else 0.0
        if not gap < (1e-5 if distils else 1e-6):
            return f"{name} differs by {gap:.1e}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("count", 500), ("run", 60), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for at, words in enumerate(compositions(options.count, options.seed)):
            found, difference = composed(words, Path(folder) / "check"), ""
            counts["composed" if found.code == 0 else "refused"] += 1
            if not found.wrong and found.code == 0 and counts["run"] < options.run:
                found, difference = run_small(words, Path(folder) / str(at))
                counts["run" if found.code == 0 else "refused by data"] += 1
            if found.wrong or difference:
                counts["problems"] += 1
                print(" ".join(words), "\n   ", found.wrong, difference, "\n   ", found.said[-600:], flush=True)
    print(dict(counts))
    return int(counts["problems"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
