"""Whether a change of the code moved a number: record small runs of every pipeline, engine and launcher, and compare.

    python scripts/same_numbers.py record before.json [--only knot fused]
    python scripts/same_numbers.py compare before.json after.json

Only command lines and stored files are used, so two versions of the package can be compared: each is recorded from its
own checkout. Recorded are digests of weights, predictions and vectors (all bytes), of results, rounds and probes (less
times, versions and provenance), and of what the reports print. Exit code 1 where a digest differs or is missing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
IMAGES = [
    "task=femnist", "task.limit=300", "task.shape=[1,8,8]", "partition.count=6", "partition.alpha=5.0",
    "task.source=embedded", "hardware.workers=2",
]  # fmt: skip
TRAINING = [
    "model.hidden=[16]", "training.rounds=3", "training.epochs=2", "training.participants=3", "training.batch=8",
    "training.lr=.05",
]  # fmt: skip
FEDERATED = [*IMAGES, *TRAINING]
PAIRS = [
    "task=mnist_fedwad", "task.source=embedded", "task.shape=[1,8,8]", "partition.clients=10",
    "hardware.workers=2", *TRAINING, "method.clustering.otdd.samples=20",
]  # fmt: skip
TEXTS = [
    "task.source=embedded", "task.limit=60", "model.hidden=16", "model.layers=1", "model.intermediate=32",
    "model.vocab_size=600",
    "training.local.epochs=2", "training.pretrain.epochs=2", "training.distil.epochs=2", "training.distil.batch=16",
    "method.bias.texts=20", "method.bias.tokens=20", "hardware.workers=2",
]  # fmt: skip
#: Name -> commands, given one after the other with a folder of their own.
COMMANDS: dict[str, list[list[str]]] = {
    "averaging": [[*FEDERATED, "method=fedavg,fedavg_chill,fedprox,scaffold"]],
    "personal": [
        [*FEDERATED, "method=fedper,fedper_final"],
        [*FEDERATED, "method=fedrep,fedrep_final", "method.head_epochs=1"],
    ],
    "clustered": [[*PAIRS, "method=clustered_fedavg,clustered_fedper"]],
    "loop": [[*FEDERATED, "hardware.engine=loop", "method=fedavg,fedprox,scaffold,fedper"]],
    "stacked": [[*FEDERATED, "hardware.engine=stacked", "method=fedavg,fedprox,scaffold,fedper"]],
    "chilled": [
        [*FEDERATED, "method=fedavg_chill", "method.hard_temperature=2", "method.server.optimiser=adam"],
        [*FEDERATED, "method=fedavg_chill", "method.stragglers={share:.3,temperature:.05,epochs:1}"],
        [*FEDERATED, "method=fedavg_chill", "method.schedule={shape:linear,end:1.0,rounds:3}"],
    ],
    "cnn": [[*IMAGES, *TRAINING[1:], "model=cnn_fedrep", "task.shape=[1,28,28]", "training.rounds=1", "method=fedavg"]],
    "resnet": [[*IMAGES, *TRAINING[1:], "model=resnet18", "training.rounds=1", "method=fedavg"]],
    "fused": [[*FEDERATED, "hydra/launcher=fused", "method=fedavg,scaffold", "seed=0,1"]],
    "joblib": [[*FEDERATED, "hydra/launcher=joblib", "method=fedavg,fedper"]],
    "submitit": [[*FEDERATED, "hydra/launcher=submitit_local", "method=fedavg,fedprox"]],
    "knot": [["task=sa", *TEXTS, "method=entropy_a,entropy_e,sinkhorn_u,sinkhorn_d,teachers"]],
    "knot_tasks": [["task=erc,nli", *TEXTS, "method=sinkhorn_e"]],
    "knot_fused": [["task=sa", *TEXTS, "hydra/launcher=fused", "method=entropy_a,sinkhorn_e", "seed=0,1"]],
    "probe": [[*IMAGES, "method=temperature_probe", "method.images=40", "method.boundary_images=20"]],
    "distance": [["task=gaussians", "method=federated_distance", "task.samples=60", "task.dimension=3"]],
    "matrix": [["task=image_sets", "method=dataset_distance", "method.otdd.samples=20"]],
    "coreset": [
        ["task=mnist", "partition=shards", "partition.clients=10", "method=coreset", "method.epochs=4"],
        ["task=mnist_fedwad", "partition=shards", "partition.clients=10", "method=coreset_knn", "method.epochs=3"],
    ],
    "reports": [
        ["experiment=chill_table1", *FEDERATED, "seed=0,1"],
        ["table", "chill_table1", *FEDERATED, "seed=0,1"],
        ["claims", "chill_table1", *FEDERATED, "seed=0,1"],
        ["compare", "--by=method.temperature", "task=femnist"],
    ],
    "clustered_reports": [
        [*begin, *PAIRS, "training.epochs=5", "method=clustered_fedavg", "seed=0,1"]
        for begin in (["experiment=fedwad_table2"], ["table", "fedwad_table2"], ["claims", "fedwad_table2"])
    ],
    "knot_reports": [
        ["experiment=knot_table3", *TEXTS, "seed=0,1"],
        ["table", "knot_table3", *TEXTS, "seed=0,1"],
        ["claims", "knot_table3", *TEXTS, "seed=0,1"],
        ["compare", "--by=method", "task=erc"],
    ],
}
#: Keys of results and rounds that say how a run went, not what came out.
PASSING = {"seconds", "versions", "digest", "files", "code", "commit", "threads", "made_by", "plugins", "uncommitted"}
REPORTS = ("table", "claims", "compare")


def main() -> int:
    """Parse the command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run everything here and write the digests")
    recording.add_argument("file", type=Path)
    recording.add_argument("--only", nargs="+", default=list(COMMANDS), choices=list(COMMANDS))
    comparing = commands.add_parser("compare", help="two files of digests")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    options = parser.parse_args()
    if options.command == "compare":
        return compare(*(json.loads(path.read_text()) for path in (options.before, options.after)))
    found = {}
    for name in options.only:
        found[name] = record(COMMANDS[name])
        print(f"{name}: {len(found[name])} digests", flush=True)
        options.file.write_text(json.dumps(found, indent=1))
    return 0


def record(commands: list[list[str]]) -> dict[str, str]:
    """What is recorded -> its digest, of ``commands`` given in a fresh folder. Raises where one fails."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        environment = {**os.environ, "COLUMNS": "100", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        for words in commands:
            call = [
                sys.executable,
                "-m",
                "knot_runner",
                *words,
                f"{'--out' if words[0] == 'compare' else 'paths.out'}={out}",
            ]
            done = subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
            if words[0] in REPORTS:
                found[f"printed {words[0]}"] = digest(done.stdout.replace(str(out), "OUT").encode())
        for path in sorted(out.rglob("*")):
            if path.is_file() and not any(part.startswith(".") for part in path.relative_to(out).parts):
                content = recorded(path)
                if content is not None:
                    found[str(path.relative_to(out))] = digest(content)
    return found


def recorded(path: Path) -> bytes | None:
    """What of a stored file is compared; None: nothing."""
    if path.suffix in (".safetensors", ".csv", ".tex", ".md"):
        return path.read_bytes()
    if path.name in ("result.json", "probe.json", "partition.json"):
        return plain(json.loads(path.read_text()))
    if path.suffix == ".jsonl":
        return b"\n".join(plain(json.loads(line)) for line in path.read_text().splitlines())
    return None


def plain(value: Any) -> bytes:
    """``value`` as JSON with sorted keys, less :data:`PASSING`."""
    return json.dumps(less_passing(value), sort_keys=True).encode()


def less_passing(value: Any) -> Any:
    """``value`` without :data:`PASSING` at any depth."""
    if isinstance(value, dict):
        return {key: less_passing(one) for key, one in value.items() if key not in PASSING}
    return [less_passing(one) for one in value] if isinstance(value, list) else value


def digest(content: bytes) -> str:
    """The first 16 characters of its SHA-256."""
    return hashlib.sha256(content).hexdigest()[:16]


def compare(before: dict[str, dict[str, str]], after: dict[str, dict[str, str]]) -> int:
    """Print what differs; 1 if anything does."""
    wrong = 0
    for name, old in before.items():
        new = after.get(name, {})
        for key in sorted(old.keys() | new.keys()):
            if old.get(key) != new.get(key):
                wrong += 1
                print(f"{name}: {key}: {old.get(key, 'not there')} -> {new.get(key, 'not there')}")
    print(f"{sum(map(len, before.values()))} digests, {wrong} differ")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
