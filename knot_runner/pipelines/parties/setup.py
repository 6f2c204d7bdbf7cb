"""The parties of a distillation and the federation that its method receives, for texts and images."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

from safetensors import SafetensorError

from knot_runner.config.settings.families import family_of
from knot_runner.config.settings.methods.distill import DistillSettings, RunTeacher
from knot_runner.config.settings.methods.knot import KnotSettings
from knot_runner.config.settings.run import build_run
from knot_runner.config.strict import digest, without
from knot_runner.data.parties import image_parties, teaching_parties
from knot_runner.data.tasks import PartyTask
from knot_runner.engine.commit import load_bytes
from knot_runner.engine.federated.flat import check_network
from knot_runner.engine.requests import TensorsAndFacts
from knot_runner.engine.store import Store
from knot_runner.methods.party import PartyFederation
from knot_runner.methods.weighting import needs_bias
from knot_runner.models.network import Network, build_network
from knot_runner.pipelines.context import RunContext
from knot_runner.pipelines.federations.parties import image_federation
from knot_runner.pipelines.federations.texts import load_tokenizer, text_federation
from knot_runner.pipelines.transfer_set import with_other_set
from knot_runner.provenance import DATA_CHANGE, data_changes
from knot_runner.records import MODEL_FILE, read_record, read_result, recorded_config, require_result
from knot_runner.util.errors import UserError


def read_parties(context: RunContext) -> PartyTask:
    """Return the examples of every party.

    If the method has clients, the parties are the data sets of a text task, or parts of an image task's images.
    Otherwise, the parties are a student and its teachers, and all have the same training examples.

    Raises:
        UserError: The examples cannot be read, or the partition is not possible.
    """
    settings = context.settings
    on_images = settings.on_images
    task = context.images() if on_images else context.services.texts(settings.task, context.data_root)
    if not family_of(context.method).clients:
        return teaching_parties(task, context.method, settings.seed)
    if not on_images:
        return task
    if settings.transfer is not None:
        task = with_other_set(context, task)
    return image_parties(task, settings.partition, settings.shares, settings.seed)


def make_federation(context: RunContext, task: PartyTask) -> PartyFederation:
    """Put the examples of ``task`` into the run's store, and return the federation.

    If the method measures probability biases, random examples are also stored for this measurement.

    Raises:
        UserError: The examples do not fit the models.
    """
    config = context.method
    bias = getattr(config, "bias", None)
    if isinstance(config, KnotSettings) and not needs_bias(config.weighting):
        bias = None
    if isinstance(config, DistillSettings):
        check_finished_teachers(context, task)
    make = image_federation if context.settings.on_images else text_federation
    federation = make(context, task, bias)
    if isinstance(config, DistillSettings):
        return with_teachers(federation, config, context.store)
    return federation


def with_teachers(federation: PartyFederation, config: DistillSettings, store: Store) -> PartyFederation:
    """Return ``federation`` with the networks that ``config`` defines for the teachers.

    If a teacher is the model of a finished run, put the teacher's weights into ``store``.

    Raises:
        UserError: The weights of a finished run do not fit the settings, or the settings select pretrained weights for
            a teacher that is trained from scratch.
    """
    teachers = []
    for number, (party, spec) in enumerate(zip(federation.clients, config.teachers, strict=True)):
        if isinstance(spec, RunTeacher):
            network = dataclasses.replace(party.network, spec=spec.model)
            trained = (FINISHED_STAGE, digest({"run": spec.run, "weights": spec.weights}))
            store.find_or_put(*trained, partial(_weights, f"method.teachers[{number}]", spec, network))
            teachers.append(dataclasses.replace(party, network=network, trained=trained))
            continue
        network = dataclasses.replace(party.network, spec=spec)
        if network.is_pretrained:
            problem = f"{spec.name} has weights={spec.weights}, but is trained from scratch. Use weights=scratch"
            raise UserError(problem, "method.teachers")
        check_network(network, federation.seed)
        teachers.append(dataclasses.replace(party, network=network))
    return dataclasses.replace(federation, clients=tuple(teachers))


# ------------------------------------------------------------------------------------------------- finished teachers


#: Stage of the store with the weights of finished runs.
FINISHED_STAGE = "finished"


#: Task settings that affect neither the training and test examples nor how a model reads them.
FREE_KEYS = ("augment", "geometry", "coordinates", "superclasses", "max_length", "probe", "score")


def check_finished_teachers(context: RunContext, task: PartyTask) -> None:
    """Check that each teacher from a finished run fits a student that learns ``task``.

    The teacher must have the same task and data as the student. Otherwise, the teacher's training examples may include
    test examples of the student.

    Raises:
        UserError: A teacher does not fit the student, or the result or data of the teacher's run have changed.
    """
    for number, teacher in enumerate(context.method.teachers):
        if not isinstance(teacher, RunTeacher):
            continue
        key = f"method.teachers[{number}]"
        folder = Path(teacher.folder)
        result = read_result(folder)
        if result is None or result.digest[MODEL_FILE] != teacher.weights:
            raise UserError(f"{folder}: the run was changed or deleted during this command. Repeat the command", key)
        settings = build_run({**recorded_config(folder), "plugins": context.settings.plugins})
        _check_task(f"the teacher (run {teacher.run}, {key})", settings.task, context.settings.task)
        if changes := data_changes(result, context.settings.paths.data_dir):
            change = changes[0].removeprefix(DATA_CHANGE)
            raise UserError(f"the data of run {teacher.run} differ from the data in paths.data_dir: {change}", key)
        if context.settings.on_images:
            continue
        paths = dataclasses.replace(settings.paths, data_dir=context.settings.paths.data_dir)
        run = dataclasses.replace(context, settings=dataclasses.replace(settings, paths=paths), method=settings.method)
        theirs = load_tokenizer(run, run.services.parties(run))
        if theirs.to_str() != load_tokenizer(context, task).to_str():
            hint = "For teacher and student, use the same model.vocab, or the same texts and the same model.vocab_size"
            raise UserError(f"run {teacher.run} has a different vocabulary than the student", key, hint=hint)


def _check_task(run: str, theirs: object, ours: object) -> None:
    """Raise :class:`UserError` for the first setting in which the teacher's task differs from the student's task."""
    has = without(dataclasses.asdict(theirs), *FREE_KEYS)
    wanted = without(dataclasses.asdict(ours), *FREE_KEYS)
    for name in wanted:
        if has.get(name) != wanted[name]:
            raise UserError(
                f"task.{name} is {has.get(name)!s:.80} for {run}, but {wanted[name]!s:.80} for the student. With other "
                "task settings, the data may be split or processed differently. Use a teacher with the same settings"
            )


def _weights(key: str, teacher: RunTeacher, network: Network) -> TensorsAndFacts:
    """Check that the finished run's weights fit ``network``; return the weights, and facts about the weights.

    Raises:
        UserError: The weights do not fit.
    """
    folder = Path(teacher.folder)
    model = build_network(network)
    try:
        tensors = load_bytes(read_record(folder, require_result(folder), MODEL_FILE))
    except SafetensorError:
        raise UserError(f"{folder / MODEL_FILE}: not a safetensors file", key) from None
    try:
        missing, unexpected = model.load_state_dict(tensors, strict=False)
        fits = not unexpected and all(name.endswith("num_batches_tracked") for name in missing)  # engines ignore them
    except RuntimeError:  # raised if shapes differ
        fits = False
    if not fits:
        problem = (
            f"{folder / MODEL_FILE}: expected one model of kind {network.spec.kind} with {network.classes} classes"
        )
        raise UserError(problem, key, hint="Use a run with one global model or one student")
    return model.state_dict(), {"title": f"{FINISHED_STAGE} {teacher.run}", "seconds": 0.0}
