"""Flower's simulation and pfl-research on the workloads of ``bench_federation``, in a Python of their own.

Both want other dependencies than this project, so they live in an environment beside it:

    python3 -m venv peers
    peers/bin/pip install torch==2.13.0 "flwr[simulation]==1.41.0" pfl==0.6.0 transformers
    python scripts/bench.py federation --workload W2 --peers --peer-python peers/bin/python

Two processes of one thread each: two Ray actors for Flower, two ranks under torchrun for pfl. Clients index tensors
(no DataLoader) and train by autograd and ``optim.SGD``; texts are trained in Flower alone, by ``optim.AdamW`` and with
the BERT of transformers. Evaluation is off; the clients of a round are those of the other engines. pfl deals batches in
fixed order, without the shuffle of the others.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import process_tree
from peers_side import JOB, PROCESSES
from workloads import BATCH, LR, TOKENS, WORKLOADS

from knot_runner.models.network import Network

#: what runs in the peers' Python
SIDE = str(Path(__file__).with_name("peers_side.py"))
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}


def rows(workload: str, rounds: int, python: str) -> list[dict[str, Any]]:
    """name, median seconds and CPU seconds (``cpu``) a round without the first, and peak_mb of each peer; CPU time and
    memory (PSS) are summed over the process tree.

    Raises RuntimeError with the end of a peer's output when it fails.
    """
    flower = [python, SIDE, "flower"]
    pfl = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}", SIDE, "pfl"]
    job = _described(workload, rounds)
    found = [_row(f"Flower, {PROCESSES} actors", flower, job)]
    if "bert" not in job:
        found.append(_row(f"pfl-research, {PROCESSES} processes", pfl, job))
    return found


def _described(workload: str, rounds: int) -> dict[str, Any]:
    """The workload in plain values, for a Python without this project; one round more than is timed."""
    chosen = WORKLOADS[workload]
    return (_text_model(chosen.network) if chosen.network.reads_texts else _image_model(chosen.network)) | {
        "classes": chosen.network.classes,
        "sizes": chosen.sizes,
        "epochs": chosen.epochs,
        "optimizer": chosen.optimizer,
        "batch": BATCH,
        "lr": LR,
        "cohorts": [chosen.cohort(number) for number in range(rounds + 1)],
    }


def _image_model(network: Network) -> dict[str, Any]:
    convs = [[conv.channels, conv.kernel, conv.padding] for conv in getattr(network.spec, "convs", [])]
    return {"shape": network.inputs, "convs": convs, "hidden": network.spec.hidden}


def _text_model(network: Network) -> dict[str, Any]:
    """Settings of transformers' ``BertConfig``, and the least and the largest number of tokens of a text."""
    spec = network.spec
    bert = {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "intermediate_size": spec.intermediate,
        "hidden_dropout_prob": spec.dropout,
        "attention_probs_dropout_prob": spec.dropout,
    }
    return {"bert": bert, "lengths": TOKENS}


def _row(name: str, command: list[str], job: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder, "job.json"), Path(folder, "log")
        path.write_text(json.dumps(job | {"result": str(Path(folder, "result.json"))}))
        environment = os.environ | {JOB: str(path), "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
        with log.open("w") as output:
            child = subprocess.Popen(command, stdout=output, stderr=output, env=environment | QUIET)
            with process_tree.PeakPss(child.pid) as memory:
                child.wait()
        if child.returncode:
            raise RuntimeError(f"{name}: exit {child.returncode}\n{log.read_text()[-2000:]}")
        ends = json.loads(Path(folder, "result.json").read_text())
    pairs = zip(ends, ends[1:], strict=False)
    seconds, cpu = (
        statistics.median(values) for values in zip(*((b[0] - a[0], b[1] - a[1]) for a, b in pairs), strict=True)
    )
    return {"name": name, "seconds": seconds, "cpu": cpu, "peak_mb": memory.peak}
