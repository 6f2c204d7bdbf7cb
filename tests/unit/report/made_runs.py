"""Synthetic run folders: what a finished, diverged or damaged run leaves behind, without running anything."""

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from safetensors import numpy as safetensors

from knot_runner.config.strict import digest
from knot_runner.report.figures import style as figure_style
from knot_runner.report.run_folders import Job
from knot_runner.report.tables.build import preset_table
from knot_runner.results import BYTES, FLOPS
from tests.contents import write_content

LABELS = {
    "sa": (["strong_negative", "weak_negative", "neutral", "weak_positive", "strong_positive"],
           [[-2.0], [-1.0], [0.0], [1.0], [2.0]]),
    "erc": (["anger", "happiness", "no_emotion", "sadness", "surprise"],
            [[-0.4, 0.8], [0.9, 0.2], [0.0, 0.0], [-0.9, -0.4], [0.4, 0.9]]),
    "nli": (["entailment", "neutral", "contradiction"], [[1.0, 0, 0], [0.5, 1, 0.5], [0, 0, 1.0]]),
}  # fmt: skip
DATASETS = {
    "sa": ["Cell", "Cloths", "Toys", "Food"],
    "erc": ["MELD", "IEMOCAP", "DyDa0", "DyDa1", "DyDa2"],
    "nli": ["Fic", "Gov", "Slate", "Tele", "Trv", "SNLI"],
}
TRANSFER = {"sa": "Grocery", "erc": "DyDa3", "nli": "ANLI"}
OF_RECORDS = ("digest", "run_id", "written_by")
#: Facts of every result.
FACTS: dict[str, Any] = {"kind": "distillation", "files": [], "versions": {"torch": "2.13.0"}}


def seal(folder, result=None):
    """Write ``result`` (by default the one that is there) with the checksums of the files in ``folder``."""
    found = json.loads((folder / "result.json").read_text()) if result is None else result
    write_content(folder, FACTS | {key: value for key, value in found.items() if key not in OF_RECORDS})


def save_file(arrays, path):
    """Write a safetensors file, and the result of its folder, if there is one, anew."""
    safetensors.save_file(arrays, path)
    if (path.parent / "result.json").exists():
        seal(path.parent)


def put(path, text):
    """Write a text file, and the result of its folder, if there is one, anew."""
    path.write_text(text, encoding="utf-8")
    if (path.parent / "result.json").exists():
        seal(path.parent)


_CORESET = {
    "task": "mnist", "method": "coreset", "seed": 0, "status": "done", "source": "local", "points": 4, "clients": 5,
    "shape": [1, 3, 2], "datasets": {"train": 50, "test": 20}, "labels": {"names": ["a", "b", "c"]},
    "distance": "federated", "losses": [3.0, 2.0], "notes": [], "seconds": {"total": 1.0, "descent": 0.5},
}  # fmt: skip
CORESET = {**_CORESET, "kind": "coreset", "metrics": {"distance": {"ALL": 2.0}}, "classes_covered": 2}
SCORES = {"accuracy": {"ALL": 0.8}, "f1": {"ALL": 0.7}, "client_accuracy": {"weighted": 0.8, "unweighted": 0.75}}
KNN = {**_CORESET, "kind": "knn", "metrics": SCORES}
DNN = ("femnist_dnn", "mlp")
FLEET = {"clock": 900.0, "arrived": 90, "dropped": 0, "late": 0, "partial": 0, "empty": 0, "staleness": 0.0}
#: Bytes and operations of one round.
COSTS = {"bytes_down": 30, "bytes_up": 12, "client_flops": 5_000, "server_flops": None}
#: Distances of three data sets.
EXACT = [[0.0, 1.0, 2.0], [1.0, 0.0, 4.0], [2.0, 4.0, 0.0]]


def distance_result(mode="approximate", seed=0, support=4, n=20, **changes):
    """A run of three iterations: exact distance 2, value 2.2, closed form 4."""
    return {
        "kind": "distance", "task": "gaussians", "source": "generated", "method": "federated_distance", "seed": seed,
        "status": "done", "mode": mode, "iterations": 3, "samples": [n, n], "ratio": 1, "dimension": 2, "value": 2.2,
        "exact": 2.0, "closed_form": 4.0, "server_only": [1.9, 2.1, 2.0], "sums": [3.0, 2.6, 2.4],
        "values": [2.6, 2.4, 2.2], "support": [support] * 3, "spent": None, "notes": [],
        "seconds": {"total": 1.0, "federated": 0.5, "exact": 0.25},
    } | changes  # fmt: skip


def matrix_result(matrix=EXACT, **changes):
    count = len(matrix)
    return {
        "task": "image_sets", "source": "local", "method": "dataset_distance", "seed": 0, "kind": "matrix",
        "status": "done", "solver": "exact", "names": [f"set {i}" for i in range(count)], "sizes": [50] * count,
        "groups": None, "pairs": count * (count - 1) // 2, "matrix": matrix, "notes": [],
        "seconds": {"total": 2.0, "distances": 1.5},
    } | changes  # fmt: skip


def shown(renderable, width=80, color_system=None):
    """What a terminal of this width shows."""
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=bool(color_system), color_system=color_system).print(renderable)
    return out.getvalue()


def build_table(jobs, paper, metrics, kind="methods", **more):
    """The table of ``jobs``; ``more``: notes and other keys of a preset's ``report:``."""
    return preset_table(jobs, {"kind": kind, "paper": paper, "metrics": metrics, **more}, "")


def csv_rows(path):
    """The rows of the CSV that is beside ``path``."""
    return list(csv.DictReader(io.StringIO(path.with_suffix(".csv").read_text(encoding="utf-8"))))


def assert_drawn(path):
    """The picture has the size of a figure, and at least one pixel in a hundred is not white."""
    from matplotlib.image import imread

    image = imread(path)
    height, width = (pixels / figure_style.DPI for pixels in image.shape[:2])  # inches
    assert 5 <= width <= 13 and 2 <= height <= 10
    assert (image[..., :3].min(2) < 0.9).mean() > 0.01


def leaning(labels, points, lean, rng):
    """Probabilities that lean to the truth by ``lean`` and, less, to the labels near it."""
    far = np.linalg.norm(points[labels][:, None] - points[None], axis=2)
    shares = np.exp(rng.normal(0, 1, far.shape) - lean * far)
    return (shares / shares.sum(1, keepdims=True)).astype(np.float32)


@dataclass
class Factory:
    """Makes run folders below ``root``."""

    root: Path

    def job(self, method="sinkhorn_e", seed=0, task="erc", label=""):
        run_id = f"{task}-{method}-{seed}-{digest(label, 6)}"
        return Job(run_id, self.root / task / method / run_id, task, method, seed, label)

    def result(self, job, base=0.4, names=None, **changes):
        """A result.json: f1 is ``base`` + .01 per data set, accuracy .1 more, sd ``base`` + .2; ALL alike."""
        names = names or DATASETS[job.task]
        steps = {name: round(base + 0.01 * i, 6) for i, name in enumerate([*names, "ALL"])}
        plus = {"f1": 0.0, "accuracy": 0.1, "sd": 0.2}
        metrics = {metric: {k: round(v + more, 6) for k, v in steps.items()} for metric, more in plus.items()}
        before = {metric: {k: round(v - 0.05, 6) for k, v in row.items()} for metric, row in metrics.items()}
        sizes = {n: {"role": "local", "train": 1000, "valid": 100, "test": 200} for n in names}
        sizes[names[-1]]["role"] = "global"
        sizes[TRANSFER[job.task]] = {"role": "transfer", "train": 1000, "valid": 100}
        labels, coordinates = LABELS[job.task]
        rng = np.random.default_rng(job.seed)
        bias = {n: rng.dirichlet(np.full(len(labels), 0.4)).round(4).tolist() for n in names}
        made = {
            "task": job.task, "source": "local", "method": job.method, "seed": job.seed, "status": "done",
            "kind": "distillation", "metrics": metrics, "before": before,
            "teachers": {n: {"f1": 0.5, "accuracy": 0.6, "sd": 0.7} for n in names},
            "datasets": sizes, "bias": bias, "labels": {"names": labels, "coordinates": coordinates},
            "selected_epoch": 7, "notes": [],
        }  # fmt: skip
        return made | changes

    def write(self, job, base=0.4, names=None, **changes):
        job.folder.mkdir(parents=True, exist_ok=True)
        seal(job.folder, self.result(job, base, names) | changes)
        return job

    def made(self, method="sinkhorn_e", seed=0, task="erc", label="", **changes):
        return self.write(self.job(method, seed, task, label), **changes)

    def predictions(self, job, rows=400, skill=2.0):
        """Predictions that lean to the truth by ``skill`` and, less, to the labels near it."""
        points, rng, arrays = np.array(LABELS[job.task][1]), np.random.default_rng(job.seed), {}
        for name in DATASETS[job.task]:
            labels = rng.integers(0, len(points), rows)
            for prefix, lean in (("", skill), ("before/", skill / 2)):
                arrays[f"{prefix}{name}.probabilities"] = leaning(labels, points, lean, rng)
            arrays[f"{name}.labels"] = labels.astype(np.int64)
        save_file(arrays, job.folder / "predictions.safetensors")
        return job

    def vectors(self, job, rows=300, spread=1.0):
        """[CLS] vectors: one Gaussian cloud per label, ``spread`` wide, on a line in 16 dimensions."""
        rng = np.random.default_rng(job.seed)
        labels = np.arange(rows) % len(LABELS[job.task][0])
        points = rng.normal(0, spread, (rows, 16)) + labels[:, None] * np.eye(16)[0] * 2
        arrays = {"vectors": points.astype(np.float32), "labels": labels.astype(np.int64)}
        save_file(arrays, job.folder / "vectors.safetensors")
        return job

    def probes(self, job, models=("student", "before", "MELD")):
        rng = np.random.default_rng(job.seed)
        classes = len(LABELS[job.task][0])
        entries = [
            {
                "probe": probe, "template": f"My {{}} said {i}.", "words": list(words), "model": model,
                "probabilities": rng.dirichlet(np.full(classes, 2.0), 2).tolist(),
            }
            for probe, words in (("gender", ("father", "mother")), ("race", ("White", "Latino")))
            for i in range(3)
            for model in models
        ]  # fmt: skip
        put(job.folder / "probe.json", json.dumps(entries))
        return job


@dataclass
class FederatedFactory:
    """Makes run folders of federated runs below ``root``."""

    root: Path

    def job(self, temperature=1.0, seed=0, control=False, task="femnist", model=DNN, partition="natural", label=""):
        config = {
            "task": {"name": task, "kind": "images", "source": "local"}, "model": {"name": model[0], "kind": model[1]},
            "partition": {"kind": partition}, "hardware": {"engine": "lean", "precision": "float32"},
            "method": {"algorithm": "fedavg", "temperature": temperature, "lr_control": control},
        }  # fmt: skip
        rest = [part for part in label.split(", ") if not part.startswith("method.")]
        facts = f"{task}{model}{partition}{temperature:g}{control and temperature != 1}{seed}{rest}"
        run_id = digest({"facts": facts}, 12)
        folder = self.root / task / "fedavg_chill" / run_id
        return Job(run_id, folder, task, "fedavg_chill", seed, label, config)

    def rows(self, job, accuracies, every=1, clients=4):
        """Rows of ``rounds.jsonl``: two participants a round, .1 better after training than the global model."""
        rows = []
        for i, accuracy in enumerate(accuracies):
            row = {
                "round": i + 1, "participants": [i % clients, (i + 1) % clients], "before": [accuracy, accuracy],
                "after": [round(min(accuracy + 0.1, 1), 6)] * 2, "train_loss": 1.0, "train_temperature": 1.0,
                "steps": 10, "seconds": 0.5, **dict.fromkeys((*BYTES, *FLOPS), 0),
            }  # fmt: skip
            if (i + 1) % every == 0 or i == len(accuracies) - 1:
                row |= {
                    "accuracy": accuracy, "f1": round(accuracy * 0.9, 6), "loss": round(2 - accuracy, 6),
                    "tempered_loss": round(3 - accuracy, 6), "clients": [accuracy] * clients,
                    "client_accuracy": {"weighted": accuracy, "unweighted": accuracy},
                }  # fmt: skip
            rows.append(row)
        return rows

    def result(self, job, rows, classes=62, **changes):
        last = rows[-1]
        metrics = {name: {"ALL": last[name]} for name in ("accuracy", "f1", "loss", "tempered_loss")}
        best = max((row for row in rows if "accuracy" in row), key=lambda row: row["accuracy"])
        made = {
            "kind": "federated", "task": job.task, "source": "local", "method": job.method, "seed": job.seed,
            "status": "done", "metrics": {**metrics, "client_accuracy": last["client_accuracy"]},
            "best": {"accuracy": best["accuracy"], "round": best["round"]}, "target": None,
            "rounds_to_target": None, "rounds": len(rows), "clients": 4, "engine": "lean",
            "model": job.config["model"]["name"], "parameters": 574_142,
            "datasets": {"train": 150_000, "test": 200},
            "labels": {"names": [str(i) for i in range(classes)], "coordinates": None}, "notes": [],
            "seconds": {"total": 12.0, "rounds": 30.0},
        }  # fmt: skip
        return made | changes

    def write(self, job, accuracies, every=1, each=None, **changes):
        """``each``: further key of the rows -> its values."""
        rows = self.rows(job, accuracies, every)
        for key, values in (each or {}).items():
            for row, value in zip(rows, values, strict=True):
                row[key] = value
        job.folder.mkdir(parents=True, exist_ok=True)
        (job.folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        seal(job.folder, self.result(job, rows, **changes))
        return job

    def made(self, temperature, accuracies, **of_job):
        """A finished run whose global model had ``accuracies`` after rounds 1, 2, ..."""
        return self.write(self.job(temperature, **of_job), accuracies)


@pytest.fixture
def federated(tmp_path):
    return FederatedFactory(tmp_path)


@pytest.fixture
def factory(tmp_path):
    return Factory(tmp_path)
