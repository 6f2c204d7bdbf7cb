"""Random compositions of task, partition, model, method, options and engine, made from a seed.

    python -m tests.compositions --count 500 --run 60     counts, and what was wrong; exit code 1 where anything was

Each composes, or is refused in one line. Of those that compose, some are run for a round or a stage on generated texts
and scikit-learn's digits; a federated one ends with the weights of ``engine=loop`` in float64.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_jobs
from knot_runner.config.settings.families import family_of
from knot_runner.util.config_yaml import choices
from tests.fuzz_commands import NOTES
from tests.tiny import CLUSTERING, FEDDF_RKD, FEDDF_SINKHORN_E

#: Tasks that are run, and options that make them small.
SMALL_IMAGES = ["task.limit=240", "task.shape=[{channels},8,8]"]
SMALL_TEXTS = ["task.limit=60"]
TASKS = {
    "mnist": SMALL_IMAGES, "femnist": SMALL_IMAGES, "cifar10": SMALL_IMAGES, "fashionmnist": SMALL_IMAGES,
    "erc": SMALL_TEXTS, "sa": SMALL_TEXTS, "nli": SMALL_TEXTS,
}  # fmt: skip
MODELS = {
    "mlp_notebook": ["model.hidden=[12]"],
    "femnist_dnn": ["model.hidden=[12,8]"],
    "cnn_mcmahan": ["model.hidden=[12]", "model.convs=[{channels:4,kernel:3,padding:1}]"],
    "resnet18": ["model.width=4", "model.blocks=[1,1]"],
    "resnet18_gn": ["model.width=4", "model.blocks=[1,1]", "model.groups=2"],
    "bert_tiny": ["model.hidden=16", "model.layers=1", "model.intermediate=32", "model.vocab_size=600"],
    "bert_tiny_plain": ["model.hidden=16", "model.layers=1", "model.intermediate=32", "model.vocab_size=600"],
}
PARTITIONS = {
    "iid": ["partition.clients=3"], "dirichlet": ["partition.clients=3", "partition.floor=1"],
    "dirichlet_clients": ["partition.clients=3"], "dirichlet_nofloor": ["partition.clients=3", "partition.alpha=5.0"],
    "shards": ["partition.clients=3", "partition.shards_per_client=3"],
    "pairs": ["partition.clients=4", "partition.groups=[[0,1],[2,3]]"],
    "manual": ["partition.clients=3", "partition.mu=2.0"], "natural": [], "centralised": [],
}  # fmt: skip
#: Of rounds; each may come with any other, or be refused.
OPTIONS = [
    ["method.temperature=0.25"],
    ["method.temperature=0.25", "method.lr_control=true"],
    ["method.hard_temperature=0.5"],
    ["method.schedule={shape:linear,end:1.0,rounds:2}", "method.temperature=0.5"],
    ["method.stragglers={share:0.5,temperature:0.5,epochs:1}"],
    ["method.server.optimiser=momentum"],
    ["method.server.optimiser=adam", "method.server.lr=0.01"],
    ["method.aggregation=uniform"],
    ["method.batchnorm=local"],
    ["training.stop_at_target=true", "training.target=0.9"],
    ["training.optimiser=adamw"],
    ["training.momentum=0.9"],
    ["training.participants=2"],
    ["training.weight_decay=0.01"],
    ["fleet=phones", "fleet.dropout=0.5"],
    ["fleet=phones_partial", "fleet.deadline=3"],
    ["fleet=phones_async", "fleet.buffer=2"],  # of 1 a server's student is its only teacher, see small()
    ["privacy=user_level", "method.aggregation=uniform"],
    ["privacy=user_level", "method.aggregation=uniform", "privacy.sampling=fixed", "privacy.noise_multiplier=0.5"],
    ["partition.valid=0.2"],
    ["evaluate.matrix=end"],
    ["transfer=usps", "transfer.limit=60"],
    ["+method.personalisation.kind=finetune"],
    ["+method.personalisation.kind=soup", "+method.personalisation.epochs=2", "+method.personalisation.saves=2"],
]
#: Methods that put a piece on another algorithm, and the settings of some algorithms.
PIECES = ("feddf", "clustered_fedavg", "finetune", "soup")
#: Methods with pieces.
VARIANTS = [" ".join(words) for words in (FEDDF_SINKHORN_E, FEDDF_RKD, ["method=feddf", *CLUSTERING])]
ALGORITHMS = [
    ["method.algorithm=fedprox", "method.mu=0.01"], ["method.algorithm=scaffold"], ["method.algorithm=fedper"],
    ["method.algorithm=ditto", "+method.ditto.lam=0.5"], ["method.algorithm=apfl", "+method.apfl.alpha=0.5"],
]  # fmt: skip
#: Of distillations.
STAGE_OPTIONS = [
    ["method.normalise=true"], ["method.student_temperature=2.0"], ["method.teacher_temperature=0.5"],
    ["task.geometry=onehot"], ["task.geometry=superclasses"], ["method.bias.noise=shuffled"], ["partition.server=0.3"],
    ["partition.transfer=0.4"], ["training.distil.select=last"], ["transfer=usps", "transfer.limit=60"],
]  # fmt: skip
ENGINES = ["lean", "loop", "stacked", "auto"]
SMALL_ROUNDS = [
    "training.rounds=2", "training.epochs=2", "training.small_clients=allow", "training.batch=16",
    "training.participants=2",
]  # fmt: skip
SMALL_STAGES = [
    "training.local.epochs=1", "training.pretrain.epochs=1", "training.distil.epochs=1", "method.bias.texts=20",
    "method.bias.tokens=20", "method.bias.images=40",
]  # fmt: skip
ALWAYS = ["hardware.workers=1", "hardware.precision=float64"]


@dataclass(frozen=True)
class Outcome:
    """What became of a command line: its exit code (None: an exception), what was said, what was wrong with that."""

    code: int | None
    said: str
    wrong: str = ""


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
        words += draw.choice(ALGORITHMS)
    if anything or (draw.random() < 0.8 and (on_images or not stages)):
        partition = draw.choice(list(PARTITIONS))
        words += [f"partition={partition}", *PARTITIONS[partition]]
    if draw.random() < 0.7:
        fitting = [name for name in MODELS if name.startswith("bert") != on_images]
        model = draw.choice(list(MODELS) if anything else fitting)
        words += [f"model={model}", *MODELS[model]]
    options = draw.sample(STAGE_OPTIONS if stages else OPTIONS, draw.choice([0, 0, 1, 1, 2]))
    if stages and not on_images and not anything:
        of_images = ("task.geometry", "partition.", "transfer")
        options = [option for option in options if not option[0].startswith(of_images)]
    given = {word.partition("=")[0] for word in words}
    for word in sum(options, []):
        if word.partition("=")[0] not in given:
            words.append(word)
            given.add(word.partition("=")[0])
    return [*words, f"hardware.engine={draw.choice(ENGINES)}", f"seed={draw.randint(0, 3)}"]


def carried_out(arguments: list[str]) -> Outcome:
    """``knot-runner`` with ``arguments``, in this process."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = main(arguments)
        except BaseException:
            return Outcome(None, errors.getvalue(), traceback.format_exc(limit=-4))
    said = errors.getvalue()
    return Outcome(code, said, _wrong(code, said))


def _wrong(code: int, said: str) -> str:
    if "Traceback" in said:
        return "a traceback"
    if code == 0 or said.rstrip().endswith("knot-runner: diverged"):
        return ""
    lines = [line for line in said.splitlines() if line.startswith("knot-runner: ")]
    lines = [line for line in lines if not any(note in line for note in NOTES)]
    return "" if code == 2 and len(lines) == 1 else f"exit code {code}, {len(lines)} lines of refusal"


def composed(words: list[str], folder: Path) -> Outcome:
    """Whether ``words`` compose, as ``check`` says."""
    return carried_out(["check", "--quick", *words, f"paths.out={folder}"])


def small(words: list[str]) -> list[str]:
    """``words`` on little data, for a round or an epoch a stage."""
    (job,) = compose_jobs(words, None)
    task = words[0].partition("=")[2]
    on_images = job.settings.on_images
    channels = job.settings.task.shape[0] if on_images else 0
    extra = [option.format(channels=channels) for option in TASKS[task]]
    if not any(word.startswith("model=") for word in words):
        extra += MODELS.get(job.settings.model.name, [])
    if not any(word.startswith("partition=") for word in words) and on_images:
        extra += ["partition=dirichlet", *PARTITIONS["dirichlet"]]
    family = family_of(job.method)
    if family.trains:
        extra += SMALL_ROUNDS if family.training == "rounds" else SMALL_STAGES
    if getattr(job.method, "distil", None) and getattr(job.settings.partition, "kind", "") == "centralised":
        # the only client is its own student, whose gradients are all rounding, which Adam makes larger round by round
        extra.insert(0, "training.rounds=1")
        extra.remove("training.rounds=2")
    if getattr(job.method, "head_epochs", None):
        extra.append("method.head_epochs=1")
    if hasattr(job.method, "participants"):
        extra.append("method.participants=2")
    given = {word.partition("=")[0] for word in words}
    return [*words, *(word for word in [*extra, *ALWAYS] if word.partition("=")[0] not in given)]


def run_small(words: list[str], folder: Path) -> tuple[Outcome, str]:
    """(What became of the run of :func:`small`, how it differs from the same by ``engine=loop``)."""
    command = small(words)
    found = carried_out([*command, f"paths.out={folder / 'one'}"])
    if found.wrong or found.code != 0:
        return found, ""
    engine = next(word for word in words if word.startswith("hardware.engine="))
    (result,) = (folder / "one").glob("*/*/*/result.json")
    if json.loads(result.read_text()).get("kind") != "federated" or engine.endswith("=loop"):
        return found, ""
    plain = [word for word in command if not word.startswith("hardware.engine=")]
    other = carried_out([*plain, "hardware.engine=loop", f"paths.out={folder / 'loop'}"])
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
        gap = (tensor.double() - weights[1][name].double()).abs().max() if tensor.numel() else torch.zeros(())
        if not gap < (1e-5 if distils else 1e-6):
            return f"{name} differs by {float(gap):.1e}"
    return ""


def main_() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--run", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    problems, began = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for at, words in enumerate(compositions(options.count, options.seed)):
            found = composed(words, Path(folder) / "check")
            counts["composed" if found.code == 0 else "refused"] += 1
            difference = ""
            if not found.wrong and found.code == 0 and counts["run"] < options.run:
                found, difference = run_small(words, Path(folder) / str(at))
                counts["run" if found.code == 0 else "refused by data"] += 1
            if found.wrong or difference:
                problems += 1
                print(" ".join(words), "\n   ", found.wrong, difference, "\n   ", found.said[-600:], flush=True)
    print(f"{dict(counts)}, {problems} problems, {time.monotonic() - began:.0f} s")
    return int(problems > 0)


if __name__ == "__main__":
    raise SystemExit(main_())
