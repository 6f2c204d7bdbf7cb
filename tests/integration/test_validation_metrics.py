"""Validation metrics on record equal a recount with the saved weights, on examples that no training used."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import f1_score

import knot_runner as kr
from knot_runner.engine.examples import normalized
from knot_runner.models.network import build_network
from knot_runner.pipelines.clients import make_setup
from knot_runner.pipelines.context import run_context
from knot_runner.pipelines.parties.setup import make_federation
from tests.tiny import TINY_IMAGES, TINY_TAUGHT


def finished(words, out):
    (job,) = kr.compose([*words, f"paths.output_dir={out}"])
    return run_context(job, lambda *_: None, lambda _: None), kr.run(job)


def network_of(run, spec):
    network = build_network(spec).eval()
    network.load_state_dict(load_file(run.folder / "model.safetensors"))
    return network


def test_valid_metrics_match_held_out_recount(tmp_path):
    context, run = finished([*TINY_IMAGES, "method=fedavg", "partition.valid=0.2"], tmp_path)
    setup = make_setup(context)
    rows, trained_on = (torch.cat(setup.federation.rows(split)) for split in ("valid", "train"))
    assert 0 < len(rows) < len(trained_on) and not set(rows.tolist()) & set(trained_on.tolist())
    with torch.no_grad():
        logits = network_of(run, setup.networks[0])(normalized(setup.data, rows, torch.float32))
    labels, valid = setup.data.labels[rows], run.result.valid
    assert valid["accuracy"] == pytest.approx(float((logits.argmax(1) == labels).double().mean()))
    assert valid["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)), rel=1e-5)


def test_last_student_value_equals_macro_f1_on_its_validation_split(tmp_path):
    context, run = finished([*TINY_TAUGHT, "method.valid=0.1"], tmp_path)
    task = context.services.parties(context)
    federation = make_federation(context, task)
    spec = federation.server.network
    part = task.datasets["student"].splits["valid"]
    pixels = torch.as_tensor(part.pixels / 255 if part.pixels.dtype == np.uint8 else part.pixels).float()
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (federation.mean, federation.std))
    with torch.no_grad():
        predicted = network_of(run, spec)((pixels - mean) / std).argmax(1).numpy()
    expected = f1_score(part.labels, predicted, average="macro", labels=range(spec.classes))
    recorded = [row["student"] for row in run.rounds if "student" in row]
    assert recorded[-1] == pytest.approx(float(expected))
