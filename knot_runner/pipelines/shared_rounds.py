"""Stored rounds that several runs can use: rounds on given clusters, and rounds before personalization.

The final state and the log of these rounds are an artifact below ``<out>/artifacts/rounds/``. The artifact's key is a
digest of all inputs of the training.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from knot_runner.config.strict import digest, without
from knot_runner.data.images import ImageTask
from knot_runner.engine.commit import Commits, join_machines
from knot_runner.methods.around import AROUND
from knot_runner.methods.federation import FederatedState, Federation
from knot_runner.pipelines.context import RunContext, total_seconds
from knot_runner.pipelines.rounds import scalars
from knot_runner.records import ROUNDS_FILE
from knot_runner.util.files import Facts, LogRow, write_atomic

if TYPE_CHECKING:
    from knot_runner.pipelines.clients import FederatedContext

ROUNDS_STAGE = "rounds"
#: Settings of training and method that do not affect the rounds.
NOT_IN_KEY = ("name", "clustering", "personalization")


def run_shared_rounds(
    context: RunContext, key: str, commits: Commits, train: Callable[[], tuple[FederatedState, list[LogRow]]]
) -> tuple[FederatedState, list[LogRow]]:
    """Return the final state and all log rows of the rounds that the argument ``key`` identifies.

    If these rounds are not stored, call ``train()`` and store its result.

    Raises:
        DivergedError: A loss or weight is not finite.
    """
    store = context.store
    with store.lock(ROUNDS_STAGE, key):
        artifact = store.find(ROUNDS_STAGE, key)
        if artifact is None:
            state, rows = train()
            log = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
            info = {"seconds": total_seconds(rows), "machines": commits.machines}
            store.put(ROUNDS_STAGE, key, state, info, {ROUNDS_FILE: log})
            return state, rows
    context.note("the rounds were trained by an earlier run and are reused")
    join_machines([artifact.info], context.note)
    log = artifact.read(ROUNDS_FILE).decode()
    write_atomic(context.folder / ROUNDS_FILE, log)
    rows = [json.loads(line) for line in log.splitlines()]
    for row in rows:
        context.log(scalars(row))
    return artifact.tensors(), rows


def rounds_key(run: FederatedContext) -> str:
    """Return the key of the stored rounds: a digest of all training inputs."""
    settings = run.context.settings
    setup = run.setup
    federation = run.federation
    engine = run.engine
    examples: list[Any]
    if isinstance(setup.task, ImageTask):
        examples = [setup.task.mean, setup.task.std]
    else:  # tokens depend on vocabulary and task.max_length, and initial weights may come from a file
        content = hashlib.sha256()
        for tensor in (*setup.data.tensors().values(), *setup.test.tensors().values(), federation.model.weights):
            content.update(f"{tensor.dtype} {list(tensor.shape)}".encode() + tensor.cpu().numpy().tobytes())
        examples = [content.hexdigest()]
    plain: Facts = {
        "seed": settings.seed,
        "task": [setup.task.digest, *examples, setup.task.coordinates, federation.augment],
        "model": settings.model,
        "plugins": settings.plugins,
        "engine": [engine.name, settings.hardware.precision],
        "clients": _clients_key(federation),
        "clusters": [list(cluster.numbers) for cluster in run.clusters],
        "training": without(dataclasses.asdict(settings.training), *NOT_IN_KEY),
        "method": without(dataclasses.asdict(run.config), *NOT_IN_KEY),
        "around": [getattr(settings, group) for group in AROUND],
    }
    if engine.name == "stacked":
        plain |= {"stack": settings.hardware.stack}
    return digest(plain)


def _clients_key(federation: Federation) -> list[Any]:
    """Return entries of the key: the rows of clients' examples and, if the server distills, the server's rows."""
    rows = hashlib.sha256()
    for client in (*federation.numbers, *federation.unseen):
        for rows_of_client in (federation.clients[client].train, federation.clients[client].test):
            rows.update(len(rows_of_client).to_bytes(8) + rows_of_client.numpy().tobytes())
    entries = [list(federation.numbers), rows.hexdigest()]
    if federation.server is not None:
        for rows_of_server in (federation.server.transfer, federation.server.random):
            entries.append(hashlib.sha256(rows_of_server.numpy().tobytes()).hexdigest())
        entries.append(federation.label_points)
    return entries
