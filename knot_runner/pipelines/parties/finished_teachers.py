"""Teachers that are finished runs: their fit to the student, the examples they have seen, and their weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from torch import nn

from knot_runner.config.settings import build_run
from knot_runner.config.settings.families import family_of
from knot_runner.config.settings.methods.distil import DistilSettings, RunTeacher
from knot_runner.config.strict import digest
from knot_runner.data.pools import pool_texts
from knot_runner.data.tasks import Examples, Images, PartyTask, digests_of, seen_rows
from knot_runner.engine.commit import load_bytes
from knot_runner.engine.requests import Ref
from knot_runner.engine.store import Store
from knot_runner.methods.federation import Federation
from knot_runner.models.network import Network, build_network
from knot_runner.pipelines.clients.setup import deal_clients
from knot_runner.pipelines.clients.transfer_set import with_other_set
from knot_runner.pipelines.context import RunContext
from knot_runner.pipelines.federations.texts import load_tokenizer
from knot_runner.pipelines.runs.kept_images import read_images
from knot_runner.records import MODEL_FILE, read_record, read_result, recorded_config
from knot_runner.util.errors import UserError

#: Where the store keeps the weights of finished runs.
FINISHED_STAGE = "finished"


@dataclasses.dataclass(frozen=True)
class LearntFrom:
    """The examples of a run: those that it ``trained`` on, its ``tests``, and the digest of its data."""

    trained: list[Examples | Images]
    tests: list[Examples | Images]
    data: str


def check_finished_teachers(context: RunContext, task: PartyTask) -> None:
    """Raises :class:`UserError` naming a teacher that does not fit the student of ``task``, that has learnt from the
    student's test examples, or for which this cannot be determined."""
    for key, teacher in _finished(context.hp):
        result = read_result(Path(teacher.folder))
        if result is None or result["digest"][MODEL_FILE] != teacher.weights:
            raise UserError(f"{key}: {teacher.folder}: is no more the finished run that was asked for")
        names = result["labels"]["names"]
        if names != task.labels.names:
            raise UserError(
                f"{key}: run {teacher.run} tells {_some(names)} apart, and the student {_some(task.labels.names)}"
            )
        own = _context_of(context, teacher)
        _check_inputs(key, teacher, own, context, task)
        _check_seen(key, teacher, own, task)


def with_finished_teachers(context: RunContext, federation: Federation, store: Store) -> Federation:
    """Returns ``federation`` with the weights of finished runs put into ``store``. Raises :class:`UserError`."""
    teachers = []
    for number, (party, teacher) in enumerate(zip(federation.clients, context.hp.teachers, strict=True)):
        trained = None
        if isinstance(teacher, RunTeacher):
            trained = _put_weights(f"method.teachers[{number}]", teacher, party.network, store)
        teachers.append(dataclasses.replace(party, trained=trained))
    return dataclasses.replace(federation, clients=tuple(teachers))


def learnt_from(context: RunContext) -> LearntFrom:
    """Returns the examples of the run of ``context``, partitioned again as then: clients' examples with the transfer
    set of a distilling server, or the training and validation parts of a distillation's parties. Raises
    :class:`UserError`."""
    settings = context.settings
    if family_of(context.hp).training == "stages":
        parties = context.services.parties(context)
        parts = [(split, part) for data in parties.datasets.values() for split, part in data.splits.items()]
        trained = [part for split, part in parts if split != "test"]
        return LearntFrom(trained, [part for split, part in parts if split == "test"], parties.source_digest)
    if settings.on_images:
        task = read_images(context)
        if settings.transfer is not None:
            task = with_other_set(context, task)
        other = [] if task.transfer is None else [task.transfer]
        return LearntFrom([task.train.take(_clients_rows(context, task)), *other], [task.test], task.digest)
    texts = context.services.texts(settings.task, context.data_root)
    pool = pool_texts(texts, getattr(settings.partition, "by", "user"))
    trained = [pool.train.examples.take(_clients_rows(context, pool))]
    trained += [data.splits["train"] for data in texts.datasets.values() if data.role == "transfer"]
    return LearntFrom(trained, [pool.test.examples], pool.digest)


def _clients_rows(context: RunContext, task: Any) -> np.ndarray:
    """Returns the rows of all clients' training and validation examples and of the server's transfer set."""
    partition, held_out = deal_clients(context, task)
    shared = [held_out] if context.hp.distil is not None else []
    return np.unique(np.concatenate([*partition.train, *(partition.valid or []), *shared]))


def _finished(hp: DistilSettings) -> Iterator[tuple[str, RunTeacher]]:
    for number, teacher in enumerate(hp.teachers):
        if isinstance(teacher, RunTeacher):
            yield f"method.teachers[{number}]", teacher


def _context_of(context: RunContext, teacher: RunTeacher) -> RunContext:
    """Returns the context of the ``teacher`` run, on its own data or, where these are missing, on the student's."""
    folder = Path(teacher.folder)
    config = recorded_config(folder)
    paths = dict(config.get("paths", {}))
    if paths.get("data") is None or not Path(paths["data"]).expanduser().is_dir():
        paths["data"] = context.settings.paths.data
    settings, method = build_run({**config, "paths": paths})
    return dataclasses.replace(context, settings=settings, hp=method, folder=folder, run_id=teacher.run)


def _check_inputs(key: str, teacher: RunTeacher, own: RunContext, context: RunContext, task: PartyTask) -> None:
    """Raises :class:`UserError` unless the teacher takes the student's inputs: same image shape and normalisation, or
    vocabulary."""
    if context.settings.on_images:
        theirs, ours = own.settings.task, context.settings.task
        for name in ("shape", "mean", "std"):
            if list(getattr(theirs, name)) != list(getattr(ours, name)):
                raise UserError(
                    f"{key}: run {teacher.run} reads images with task.{name}={getattr(theirs, name)}, and the student "
                    f"has {getattr(ours, name)}"
                )
        return
    theirs = load_tokenizer(own.settings.model, own.services.parties(own), own.data_root)
    if theirs.to_str() != load_tokenizer(context.settings.model, task, context.data_root).to_str():
        raise UserError(
            f"{key}: run {teacher.run} has another vocabulary than the student; model.vocab=FILE, or the same texts "
            "and model.vocab_size, make it one"
        )


def _check_seen(key: str, teacher: RunTeacher, own: RunContext, task: PartyTask) -> None:
    """Raises :class:`UserError` if the teacher, or a finished run that taught it, learnt from the student's test
    examples."""
    student = next(data for data in task.datasets.values() if data.role == "global")
    learnt, repeated = set(), set()
    for run, read in _all_read(own):
        if read is None:
            raise UserError(
                f"{key}: what run {run} learnt from is not read as it was, so that it cannot be known whether it has "
                "seen the student's test examples; paths.data of its time is right"
            )
        trained = digests_of(read.trained)
        learnt |= trained
        repeated |= trained & digests_of(read.tests)
    ours = digests_of(part for split, part in student.splits.items() if split != "test")
    seen = seen_rows(student.splits["test"], learnt, repeated | ours)
    if len(seen):
        raise UserError(
            f"{key}: run {teacher.run} has learnt from {len(seen):,} of the student's "
            f"{len(student.splits['test']):,} test examples (the first is number {seen[0] + 1}); a run with the same "
            "test set (task, limit, cut_seed, holdout) has not"
        )


def _all_read(own: RunContext) -> Iterator[tuple[str, LearntFrom | None]]:
    """Yields (run id, its examples; None where the data have changed) of a run and of the runs that taught it."""
    result = read_result(own.folder)
    try:
        read = learnt_from(own)
    except UserError:
        read = None
    intact = read is not None and result is not None and read.data == result["data"]
    yield own.run_id, read if intact else None
    for _, teacher in _finished(own.hp) if isinstance(own.hp, DistilSettings) else ():
        yield from _all_read(_context_of(own, teacher))


def _put_weights(key: str, teacher: RunTeacher, network: Network, store: Store) -> Ref:
    """Puts the run's weights into ``store``, checked against the network that its settings describe."""
    ref = (FINISHED_STAGE, digest({"run": teacher.run, "weights": teacher.weights}))
    with store.lock(*ref):
        if store.find(*ref) is None:
            tensors = _model_of(key, teacher, network).state_dict()
            store.put(*ref, tensors, {"title": f"{FINISHED_STAGE} {teacher.run}", "seconds": 0.0})
    return ref


def _model_of(key: str, teacher: RunTeacher, network: Network) -> nn.Module:
    """``network`` with the run's weights. Raises :class:`UserError` where they do not fit."""
    folder, model = Path(teacher.folder), build_network(network)
    try:
        found = load_bytes(read_record(folder, read_result(folder) or {}, MODEL_FILE))
    except SafetensorError:
        raise UserError(f"{key}: {folder / MODEL_FILE}: holds no tensors in safetensors form") from None
    wanted = {name: tensor.shape for name, tensor in model.state_dict().items()}
    needed = {name for name in wanted if not name.endswith("num_batches_tracked")}  # no engine reads these
    if not needed <= set(found) <= set(wanted) or any(found[name].shape != wanted[name] for name in found):
        raise UserError(
            f"{key}: {folder / MODEL_FILE}: is not the weights of one {network.spec.kind} with {network.classes} "
            "classes, as of methods with one global model or one student"
        )
    model.load_state_dict(found, strict=False)
    return model


def _some(names: list[str]) -> str:
    shown = ", ".join(map(str, names[:5]))
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown
