"""Corrupt every stored file of finished and unfinished runs, and see that no number changes in silence.

For each kind of run two finished and two unfinished ones are made; then each stored file is changed in turn: a byte in
each of ten regions, cut at four places, deleted, swapped with the other run's. After each change the reports are read
(finished) or the command is given again (unfinished): the numbers are those of the run left alone, or the file (or the
run) is named and not used.

python scripts/corrupt.py --kinds federated matrix coreset knot --out /tmp/corrupt
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from compositions import command_output

from knot_runner.config.strict import without
from knot_runner.engine import commit
from knot_runner.records import RESULT_FILE, STATE_FILES, read_result
from knot_runner.report.frame import read_runs
from knot_runner.report.run_folders import PREDICTIONS, VECTORS, Run, arrays, rounds, with_files
from knot_runner.results import RunResult
from knot_runner.util.errors import UserError

IMAGES = [
    "task=femnist", "task.max_examples=300", "task.shape=[1,8,8]", "partition.embedded_clients=6",
    "partition.alpha=5.0", "model.hidden=[16]", "hardware.num_workers=1",
]  # fmt: skip
TRAINING = [
    "training.rounds=3",
    "training.local_epochs=1",
    "training.clients_per_round=3",
    "training.batch_size=8",
    "training.lr=.01",
]
TEXTS = [
    "task.max_examples=60", "model.hidden=16", "model.layers=1", "model.intermediate=32", "model.vocab_size=600",
    "training.local.epochs=2", "training.pretrain.epochs=2", "training.distill.epochs=2",
    "training.distill.batch_size=16", "method.bias.texts=20", "method.bias.tokens=20", "hardware.num_workers=1",
]  # fmt: skip
#: Kind -> overrides of its smallest run.
KINDS = {
    "federated": [*IMAGES, *TRAINING],
    "matrix": [*IMAGES, "method=dataset_distance"],
    "coreset": [*IMAGES, "method=coreset", "method.points=4", "method.epochs=3", "method.participants=2"],
    "knot": TEXTS,
}
#: Files that hold no number: how a run went.
PASSING = {"log.txt", "failed.json", "progress.json", "driver.txt"}


class Stopped(BaseException):
    """Stands for a kill: nothing catches it."""


def run(overrides: list[str], out: Path) -> tuple[int, str]:
    """Run one command in this process; return its exit code and its output."""
    return command_output([*overrides, f"paths.output_dir={out}"])


def numbers(out: Path) -> dict[str, Any]:
    """Run id -> numbers, without times, of every run as reports read it; or why it is not used."""
    found: dict[str, Any] = {}
    for record in read_runs(out).runs["run"]:
        digest = {} if record.result is None else record.result.digest
        stored = sorted(name for name in digest if name != RESULT_FILE)
        run = with_files(record, stored)
        used = run.status == "done"
        found[record.folder.name] = [_result(run.result), *_records(run)] if used else f"unused: {run.problem}"
    return found


def _result(result: RunResult) -> str:
    free = ("seconds", "digest", "files")
    return json.dumps(without(dataclasses.asdict(result), *free), sort_keys=True)


def _records(run: Run) -> list[Any]:
    kept: list[Any] = []
    for read in (lambda run: arrays(run, PREDICTIONS), rounds, lambda run: arrays(run, VECTORS)):
        with contextlib.suppress(UserError, KeyError):
            kept.append(_plain(read(run)))
    return kept


def _plain(value: Any) -> Any:
    """Return ``value`` to be compared, without times: arrays by all their bytes, mappings in any order."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items() if key != "seconds"}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def damages(content: bytes, other: bytes | None, regions: int, cuts: int) -> Iterator[tuple[str, bytes | None]]:
    """(What is done, the file's new content; None: it is deleted)."""
    for region in range(regions):
        place = min(len(content) - 1, region * len(content) // regions + len(content) // (2 * regions))
        if place >= 0:
            yield f"flip {region}", content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    for part in range(cuts):
        yield f"cut {part}", content[: part * len(content) // cuts]
    yield "delete", None
    if other is not None and other != content:
        yield "swap", other


def stored(out: Path) -> list[Path]:
    """Every file below ``out`` but locks, tables and what says how a run went."""
    files = (path.relative_to(out) for path in out.rglob("*") if path.is_file())
    return sorted(
        p for p in files if not p.parts[0].startswith(".") and p.name not in PASSING and ".locks" not in p.parts
    )


def twin(path: Path, files: list[Path]) -> Path | None:
    """The file of the same name of the other run or stage."""
    alike = [p for p in files if p.name == path.name and p.parts[:-2] == path.parts[:-2] and p != path]
    return alike[0] if alike else None


def tried(
    whole: Path, after: Callable[[Path], dict[str, Any]], right: dict[str, Any], parts: tuple[int, int]
) -> tuple[Counter[str], list[str]]:
    """Outcomes of every damage to every file of ``whole``, and those that are wrong; ``after``: what is read then;
    ``parts``: in how many regions a bit is flipped, and at how many places it is cut."""
    outcomes, wrong = Counter[str](), []
    files = stored(whole)
    for path in files:
        if path.parts[0] != "artifacts" and path.parts[2] not in right:
            continue  # another run's, which nothing is asked of
        mate = twin(path, files)
        for what, content in damages(
            (whole / path).read_bytes(), (whole / mate).read_bytes() if mate else None, *parts
        ):
            with tempfile.TemporaryDirectory() as place:
                out = Path(place) / "out"
                shutil.copytree(whole, out)
                target = out / path
                target.unlink()  # a model is a link to its stage's file: the damage is to one of the two
                if content is not None:
                    target.write_bytes(content)
                try:
                    found = after(out)
                except Exception as problem:  # a traceback is a failure of its own
                    outcomes["traceback"] += 1
                    wrong.append(f"{path} {what}: {type(problem).__name__}: {problem}")
                    continue
            outcome = judged(found, right)
            outcomes[outcome] += 1
            if outcome == "silent change":
                wrong.append(f"{path} {what}")
    return outcomes, wrong


def judged(found: dict[str, Any], right: dict[str, Any]) -> str:
    """equal, named (a run is left out, and said), or a silent change."""
    kinds = set()
    for name, wanted in right.items():
        own = found.get(name, "unused: not listed")
        kinds.add("equal" if own == wanted else "named" if str(own).startswith("unused: ") else "silent change")
    return "silent change" if "silent change" in kinds else "named" if "named" in kinds else "equal"


def unfinished(overrides: list[str], out: Path, seeds: list[int]) -> None:
    """Runs that are stopped after their second commit (or stage, or entry of a log)."""
    save = commit.Checkpoint.save
    append = commit.append_synced
    calls = []

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            made = real(*arguments)
            calls.append(1)
            if len(calls) == 2:
                raise Stopped
            return made

        return call

    commit.MAX_UNCOMMITTED = 0.0
    commit.Checkpoint.save, commit.append_synced = counted(save), counted(append)  # type: ignore[method-assign]
    try:
        for seed in seeds:
            calls.clear()
            with contextlib.suppress(Stopped):
                run([*overrides, f"seed={seed}"], out)
    finally:
        commit.Checkpoint.save, commit.append_synced = save, append  # type: ignore[method-assign]


def of_finished(whole: Path, parts: tuple[int, int]) -> tuple[Counter[str], list[str]]:
    """What reports make of damaged finished runs."""

    def after(out: Path) -> dict[str, Any]:
        try:
            return numbers(out)
        except UserError as problem:
            return dict.fromkeys(right, f"unused: {problem}")

    right = numbers(whole)
    return tried(whole, after, right, parts)


def of_unfinished(
    overrides: list[str], whole: Path, right: dict[str, Any], parts: tuple[int, int]
) -> tuple[Counter[str], list[str]]:
    """The same command again, after damage to what it goes on from."""

    def after(out: Path) -> dict[str, Any]:
        found = {}
        code, said = run([*overrides, "seed=0"], out)
        if code == 0:
            found = numbers(out)
        named = code == 2 and len(said.strip().splitlines()) <= 3
        return {name: found.get(name, f"unused: {said}" if named else f"broken: {said}") for name in right}

    return tried(whole, after, right, parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--out", type=Path, required=True, help="a folder that is not there yet")
    parser.add_argument("--regions", type=int, default=10, help="of each file, in which a bit is flipped")
    parser.add_argument("--cuts", type=int, default=4, help="places at which each file is cut")
    options = parser.parse_args()
    total, every = Counter[str](), []
    parts = options.regions, options.cuts
    for kind in options.kinds:
        overrides = KINDS[kind]
        place = options.out / kind
        for seed in (0, 1):
            code, said = run([*overrides, f"seed={seed}"], place / "finished")
            assert code == 0, said
        unfinished(overrides, place / "unfinished", [0, 1])
        alone = {
            name: own
            for name, own in numbers(place / "finished").items()
            if read_result(next((place / "finished").glob(f"*/*/{name}"))).seed == 0
        }
        tries = {
            "finished": of_finished(place / "finished", parts),
            "unfinished": of_unfinished(overrides, place / "unfinished", alone, parts),
        }
        for title, (outcomes, wrong) in tries.items():
            print(f"{kind}, {title}: {sum(outcomes.values())} damages: {dict(outcomes)}", flush=True)
            for line in wrong:
                print(f"  {line}", flush=True)
            total += outcomes
            every += wrong
    print(f"in all {sum(total.values())}: {dict(total)}; states that were damaged: {', '.join(STATE_FILES)}")
    raise SystemExit(1 if every else 0)


if __name__ == "__main__":
    main()
