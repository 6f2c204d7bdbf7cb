"""The parties of a distillation and the federation that its method sees, of texts or of images."""

from __future__ import annotations

import dataclasses

from knot_runner.config.settings import BiasSettings, DistillSettings, ModelSettings
from knot_runner.config.settings.families import family_of
from knot_runner.config.settings.methods.distill import RunTeacher
from knot_runner.data.parties import image_parties, teaching_parties
from knot_runner.data.tasks import PartyTask
from knot_runner.engine.store import Store
from knot_runner.methods.party import PartyFederation
from knot_runner.pipelines.clients.transfer_set import with_other_set
from knot_runner.pipelines.context import RunContext
from knot_runner.pipelines.federations.images import image_federation
from knot_runner.pipelines.federations.texts import model_files, text_federation
from knot_runner.pipelines.first_model import check_network
from knot_runner.pipelines.kept_images import read_images
from knot_runner.pipelines.parties.finished_teachers import check_finished_teachers, put_weights
from knot_runner.provenance import Opened
from knot_runner.util.errors import UserError


def read_parties(context: RunContext) -> PartyTask:
    """Reads every party's examples: the data sets of a text task, or images split by ``partition``. Raises
    :class:`UserError`."""
    settings = context.settings
    on_images = settings.on_images
    task = read_images(context) if on_images else context.services.texts(settings.task, context.data_root)
    if not family_of(context.method).clients:
        return teaching_parties(task, context.method, settings.seed)
    if not on_images:
        return task
    if settings.transfer is not None:
        task = with_other_set(context, task)
    return image_parties(task, settings.partition, settings.shares, settings.seed)


def make_federation(context: RunContext, task: PartyTask, store: Store, bias: BiasSettings | None) -> PartyFederation:
    """Returns the federation of ``task``, whose examples are put into ``store`` unless they are there.

    ``bias``: also make the random examples for probability biases. Raises :class:`UserError`.
    """
    settings, config = context.settings, context.method
    if isinstance(config, DistillSettings):
        check_finished_teachers(context, task)
    if settings.on_images:
        federation = image_federation(settings, task, store, bias)
    else:
        federation = text_federation(settings, task, store, context.data_root, bias)
    if not isinstance(config, DistillSettings):
        return federation
    return with_teachers(federation, config, store)


def with_teachers(federation: PartyFederation, config: DistillSettings, store: Store) -> PartyFederation:
    """Returns ``federation`` with the networks of the teachers named in ``config``, and with the weights of finished
    runs put into ``store``. Raises :class:`UserError`."""
    teachers = []
    for number, (party, spec) in enumerate(zip(federation.clients, config.teachers, strict=True)):
        if isinstance(spec, RunTeacher):
            network = dataclasses.replace(party.network, spec=spec.model)
            trained = put_weights(f"method.teachers[{number}]", spec, network, store)
            teachers.append(dataclasses.replace(party, network=network, trained=trained))
            continue
        network = dataclasses.replace(party.network, spec=spec)
        if network.is_pretrained:
            raise UserError(
                f"{spec.name} has weights={spec.weights}; a teacher is trained from scratch", "method.teachers"
            )
        check_network(network, federation.seed)
        teachers.append(dataclasses.replace(party, network=network))
    return dataclasses.replace(federation, clients=tuple(teachers))


def model_sources(context: RunContext) -> list[Opened]:
    """Returns the local files of vocabulary and weights, to be recorded with the task's."""
    if not isinstance(context.settings.model, ModelSettings):
        return []
    return model_files(context.settings.model, context.data_root)
