"""Runs and claims that tests of claims share."""

import json
from dataclasses import replace

import numpy as np

from knot_runner.pipelines.parties.evaluation import measure_all
from knot_runner.report.claims.verdicts import judge
from tests.unit.report.made_runs import DATASETS, FLEET, LABELS, leaning, save_file, seal

COLD = {"method.temperature": 0.05, "method.lr_control": False}
WARMER = {"method.temperature": 1}
BASE = {"text": "a claim", "source": "a paper"}
EXTRA = {"sinkhorn": {"epsilon": 0.1}, "entropy": {"form": "kl"}}
SINKHORN, ENTROPY = {"method.name": "sinkhorn_e"}, {"method.name": "entropy_e"}


def knot(factory, method, seed, skill, label="", rows=200):
    """A finished ERC run whose measures are those of its stored predictions, which lean to the truth by ``skill``, and
    half as much before distillation. All runs have the same test items."""
    loss, weighting = method.rsplit("_", 1)
    config = {
        "task": {"name": "erc", "kind": "texts"},
        "method": {"name": method, "algorithm": "knot", "weighting": weighting, "loss": {"name": loss, **EXTRA[loss]}},
        "seed": seed,
    }
    job = replace(factory.job(method, seed, "erc", label), config=config)
    points, names = np.array(LABELS["erc"][1]), DATASETS["erc"]
    rng, items = np.random.default_rng([seed, int(100 * skill)]), np.random.default_rng(9)
    labels = {name: items.integers(0, len(points), rows) for name in names}
    arrays = {
        side: {name: (leaning(own, points, lean, rng), own) for name, own in labels.items()}
        for side, lean in (("before/", skill / 2), ("", skill))
    }
    before, after = (measure_all(pairs, points) for pairs in arrays.values())
    factory.write(job, metrics=after, before=before)
    stored = {f"{side}{name}.probabilities": own[0] for side, pairs in arrays.items() for name, own in pairs.items()}
    save_file(stored | {f"{name}.labels": own for name, own in labels.items()}, job.folder / "predictions.safetensors")
    return job


def claim(**changes):
    made = {**BASE, "measure": "f1", "of": SINKHORN, "against": ENTROPY, "expect": "higher"}
    return {key: value for key, value in {**made, **changes}.items() if value is not None}


def judged(jobs, *claims, command="make", **spec):
    return judge(jobs, {"claims": list(claims), "target": 0.5, **spec}, command)


def rewrite(folder, **changes):
    """Change a result and seal it anew."""
    path = folder / "result.json"
    seal(folder, json.loads(path.read_text()) | changes)


def grid(factory, seeds=3, skills=(2.0, 0.5)):
    """Sinkhorn-E, whose student leans to the truth by the first skill, and Entropy-E."""
    pairs = zip(("sinkhorn_e", "entropy_e"), skills, strict=True)
    return [knot(factory, method, seed, skill) for method, skill in pairs for seed in range(seeds)]


def rounds_claim(**changes):
    """T=.05 needs fewer rounds than T=1."""
    return claim(**{"measure": "rounds", "of": COLD, "against": WARMER, "expect": "lower", **changes})


def courses(federated, cold, plain, length=40, spent=None, seconds=None):
    """Runs at T=.05 and T=1, a seed each, that are at .6 from these rounds on (None: never), and T=4. ``spent``: bytes
    of each round at T=.05 and at T=1, the last goes on; ``seconds``: those of a round, by seed."""
    jobs = [federated.made(4.0, [0.1, 0.5], seed=seed) for seed in range(len(cold))]
    for side, (temperature, reached) in enumerate(((0.05, cold), (1.0, plain))):
        for seed, reaches in enumerate(reached):
            below = length if reaches is None else reaches
            each, facts = {}, {}
            if spent:
                total = [spent[side][min(i, len(spent[side]) - 1)] for i in range(length)]
                each = {"bytes_down": [own // 4 for own in total], "bytes_up": [own - own // 4 for own in total]}
            if seconds:
                each = {key: [0] * length for key in ("dropped", "late", "partial", "staleness")}
                each["clock"] = [seconds[side][seed] * (i + 1) for i in range(length)]
                facts = {"fleet": FLEET | {"clock": each["clock"][-1]}}
            job = federated.job(temperature, seed=seed)
            jobs.append(federated.write(job, [0.1] * below + [0.6] * (length - below), each=each, **facts))
    return jobs
