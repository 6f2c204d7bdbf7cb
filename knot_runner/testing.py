"""Functions that check a federated algorithm, such as the algorithm of a plug-in, on small runs.

Every check has two arguments: ``words``, a list of the overrides that select the algorithm, and ``folder``, an empty
folder for the runs::

    check_method(["method=mine", "plugins=[mine.py]", "--config-dir=conf"], tmp_path)

The overrides in :data:`SMALL_RUN` make the runs small. ``words`` may replace these overrides. It may also
add a fleet, privacy, clusters, personalization or server distillation.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import torch
from safetensors.torch import load_file

from knot_runner.config.strict import content_of, without
from knot_runner.engine.commit import Commits
from knot_runner.methods.contract import State
from knot_runner.python import FinishedRun, run
from knot_runner.records import MODEL_FILE
from knot_runner.util.errors import UserError
from knot_runner.util.files import LogRow

#: A run of less than a second: the embedded digits, six clients, three clients per round, and a narrow model.
SMALL_RUN = ("task=femnist", "task.max_examples=300", "task.shape=[1,8,8]", "partition.embedded_clients=6",
    "partition.alpha=5.0", "model.hidden=[16]", "training.rounds=3", "training.local_epochs=2",
    "training.clients_per_round=3", "training.batch_size=8", "training.lr=0.1",
    "training.small_clients=allow", "hardware.num_workers=1")  # fmt: skip
#: Result and log rows of a finished run, without times. Also the content of the files with models and predictions, by
#: name.
Record = dict[str, Any]


def check_method(words: Sequence[str], folder: Path) -> None:
    """Run all checks of this module for the algorithm that is selected by the overrides in ``words``.

    Raises:
        AssertionError: A check fails.
    """
    checks = [check_workers_agree, check_resumption, check_engines_agree, check_empty_rounds, check_one_client]
    for check in [*checks, check_clients_of_one_class, check_clipping]:
        check(words, folder / check.__name__)


def check_workers_agree(words: Sequence[str], folder: Path) -> None:
    """Check that runs with one and with two worker processes have bitwise equal results, log rows and models."""
    lean = "hardware.engine=lean"
    first = _finished(words, folder / "1", lean, "hardware.num_workers=1")
    second = _finished(words, folder / "2", lean, "hardware.num_workers=2")
    _require_same(first, second, "two workers and one")


def check_resumption(words: Sequence[str], folder: Path) -> None:
    """Check that an interrupted run and an uninterrupted run have bitwise equal results, log rows and models.

    After each round, the interrupted run saves its state, is stopped, and is then resumed.
    """
    alone = _finished(words, folder / "alone")
    resumed = None
    interruptions = 0
    while resumed is None:
        try:
            with _commits_of_each_round(Mock(side_effect=KeyboardInterrupt)):
                resumed = _finished(words, folder / "interrupted")
        except KeyboardInterrupt:
            interruptions += 1
        assert interruptions < 100, "the run makes no progress between interruptions"
    rounds = len(alone.rounds)
    assert interruptions >= rounds, f"only {interruptions} commits in {rounds} rounds"
    _require_same(alone, resumed, "an interrupted and an uninterrupted run")


def check_engines_agree(words: Sequence[str], folder: Path, atol: float = 1e-9) -> None:
    """Check that the engines "lean" and "stacked" give the same losses and models as the engine "loop" in float64.

    An engine is skipped if it does not support the model or the algorithm. ``atol`` is the largest allowed absolute
    difference.
    """

    def numbers(engine: str) -> State:
        finished = _finished(words, folder, "hardware.precision=float64", f"hardware.engine={engine}")
        losses = torch.tensor([row["loss"] for row in finished.rounds])
        return {**load_file(finished.folder / MODEL_FILE), "losses": losses}

    for engine in ("lean", "stacked"):
        try:
            values = numbers(engine)
            plain = numbers("loop")
            torch.testing.assert_close(values, plain, rtol=0, atol=atol, msg=f"{engine} and loop: {{}}".format)
        except UserError as refusal:
            assert refusal.key == "hardware.engine", refusal


def check_empty_rounds(words: Sequence[str], folder: Path) -> None:
    """Check rounds in which every selected client fails: such a round must be logged and must change no model.

    The run uses a simulated fleet in which each client fails with probability 0.7.
    """
    empty = ("fleet=phones", "fleet.dropout=0.7", "training.clients_per_round=1", "training.rounds=8")
    rows, states = _rows_and_states(words, folder, *empty)
    nobody = [row for row in rows if not row["participants"]]
    assert nobody, "no round is empty"
    for row in nobody:
        number = row["round"]
        assert row["steps"] == 0 and row["train_loss"] is None, (
            f"round {number} has no participants, but its row records training: {row}"
        )
        before = states.get(number - 1, {})
        after = states[number]
        moved = [name for name in before if "fleet/" not in name and not torch.equal(before[name], after[name])]
        assert not moved, f"round {number} has no participants, but changed {', '.join(moved)}"


def check_one_client(words: Sequence[str], folder: Path) -> None:
    """Check that a federation with a single client can be trained, and that the client participates in every round."""
    one = _finished(words, folder, "partition=iid", "partition.num_clients=1", "training.clients_per_round=1")
    for row in one.rounds:
        assert set(row["participants"]) == {0}, "the only client does not participate in every round"


def check_clients_of_one_class(words: Sequence[str], folder: Path) -> None:
    """Check that a run with 20 clients finishes if every client has examples of one class only."""
    groups = f"partition.groups={[[label] for label in range(10)]}"
    _finished(words, folder, "partition=pairs", "partition.num_clients=20", groups)


def check_clipping(words: Sequence[str], folder: Path, clip: float = 1e-4) -> None:
    """Check that ``privacy`` clips every message of a client. An algorithm that refuses ``privacy`` also passes.

    The norm bound ``clip`` is so small that every message exceeds it. Every message must therefore be logged as
    clipped. Because no noise is added, ``clip`` limits how far the global model can move in a round. This limit is
    checked, except with server distillation or server Adam.
    """
    bounds = ["privacy.noise_multiplier=0", f"privacy.clip_norm={clip}", f"privacy.clip_logits={clip}"]
    private = ["privacy=user_level", *bounds, "method.aggregation=uniform", "training.clients_per_round=3"]
    try:
        rows, states = _rows_and_states(words, folder, *private)
    except UserError as refusal:
        assert str(refusal).startswith("privacy=") and "\n" not in str(refusal), (
            f"the message does not begin with 'privacy=': {refusal}"
        )
        return
    limit = 0.0
    for row in rows:
        number = row["round"]
        count = len(set(row["participants"]))
        assert len(row["update_norms"]) == count, f"{len(row['update_norms'])} norms for {count} participants"
        assert "clipped" not in row or row["clipped"] == 1.0, f"not all messages of round {number} are clipped"
        has_momentum = any(name.startswith("server/") for name in states[number])
        # The sum of ``count`` clipped messages is divided by 3, the expected number of clients.
        # Momentum adds the changes of earlier rounds again.
        limit = clip * count / 3 * (1 + 1e-3) + has_momentum * limit
        unlimited = {"distill_steps", "server/second"} & {*row, *states[number]}
        if number > 1 and "weights" in states[number] and not unlimited:
            moved = float((states[number]["weights"] - states[number - 1]["weights"]).norm())
            assert moved <= limit, (
                f"in round {number}, the global model moves by {moved:g}, but clipped messages move it by at most "
                f"{limit:g}"
            )


def _finished(words: Sequence[str], folder: Path, *more: str) -> FinishedRun:
    """Run the small run with the overrides ``words`` and ``more``, and check its records."""
    finished = run(small_run(words, folder, *more))
    status = finished.result.status
    rows = finished.rounds
    assert status == "done", f"the run has {status}"
    assert [row["round"] for row in rows] == list(range(1, len(rows) + 1)), "rows do not count the rounds from 1"
    losses = [row["train_loss"] for row in rows if row["participants"]] + [rows[-1]["loss"]]
    assert all(map(math.isfinite, losses)), f"losses are not finite: {losses}"
    return finished


def record_of(finished: FinishedRun) -> Record:
    """Return the content of a run's files. Values that can differ when the run is repeated are left out."""
    timed = ("seconds", "digest", "device")
    rows = [without(row, *timed) for row in finished.rounds]
    record = {"result": without(content_of(finished.result), *timed), "rows": rows}
    return record | {path.name: path.read_bytes() for path in finished.folder.glob("*.safetensors")}


def small_run(words: Sequence[str], folder: Path, *more: str) -> list[str]:
    """Return the overrides of a small run whose output folder is ``folder``.

    The overrides are those of :data:`SMALL_RUN`, then ``words``, then ``more``. A later override replaces an earlier
    one with the same key.
    """
    chosen = [*SMALL_RUN]
    for part in (words, more):
        replaced = tuple(f"{word.partition('=')[0]}=" for word in part)
        if "partition=" in replaced:
            replaced += ("partition.embedded_clients=", "partition.alpha=", "partition.num_clients=")
        chosen = [word for word in chosen if not word.startswith(replaced)] + [*part]
    return [*chosen, f"paths.output_dir={folder}"]


def _rows_and_states(words: Sequence[str], folder: Path, *more: str) -> tuple[list[LogRow], dict[int, State]]:
    """Run the small run; return its log rows, and a dict from the number of a round (from 1) to the state's tensors."""
    states: dict[int, State] = {}

    def keep(step: int, state: State) -> None:
        states[step + 1] = {name: tensor.clone() for name, tensor in state.items()}

    with _commits_of_each_round(keep):
        return _finished(words, folder, *more).rounds, states


def _require_same(first: FinishedRun, second: FinishedRun, whose: str) -> None:
    one = record_of(first)
    other = record_of(second)
    differs = [name for name in one | other if one.get(name) != other.get(name)]
    assert not differs, f"{whose} record different {', '.join(differs)}"


@contextlib.contextmanager
def _commits_of_each_round(see: Callable[[int, State], None]) -> Iterator[None]:
    """Let runs inside the block commit after every round, and call ``see`` with the step and state of each commit."""
    save = Commits.save

    def saved(self: Commits, step: int, state: State, *more: Any) -> State:
        shared = save(self, step, state, *more)
        see(step, state)
        return shared

    with patch.object(Commits, "due", lambda self: True), patch.object(Commits, "save", saved):
        yield
