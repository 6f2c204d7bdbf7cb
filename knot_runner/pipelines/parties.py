"""The parties of a distillation and the federation that its method sees, of texts or of images."""

from __future__ import annotations

from knot_runner.config.settings import BiasSettings, ModelSettings
from knot_runner.data.tasks import PartyTask
from knot_runner.engine.store import Store
from knot_runner.methods.federation import Federation
from knot_runner.pipelines.context import RunContext
from knot_runner.provenance import Opened


def read_parties(context: RunContext) -> PartyTask:
    """Every party's examples: the data sets of a task of texts, or images dealt by ``partition``. Raises
    :class:`UserError`."""
    settings = context.settings
    if not settings.on_images:
        return context.services.texts(settings.task, context.data_root)
    from knot_runner.data.images.parties import image_parties

    task = context.services.images(settings.task, context.data_root)
    return image_parties(task, settings.partition, settings.shares, settings.seed)


def make_federation(context: RunContext, task: PartyTask, store: Store, bias: BiasSettings | None) -> Federation:
    """What the method sees of ``task``, whose examples are put into ``store`` unless they are there.

    ``bias``: also make the random examples that show probability biases. Raises :class:`UserError`.
    """
    if context.settings.on_images:
        from knot_runner.pipelines.image_federation import image_federation

        return image_federation(context.settings, task, store, bias)
    from knot_runner.pipelines.text_federation import text_federation  # tokenizers, which images do without

    return text_federation(context.settings, task, store, context.data_root, bias)


def pretrained_notes(context: RunContext, task: PartyTask) -> list[str]:
    """What is to be said of a pre-trained encoder. Raises :class:`UserError` where it does not fit."""
    if not isinstance(context.settings.model, ModelSettings):
        return []
    from knot_runner.pipelines.text_federation import weights_notes

    return weights_notes(context.settings.model, task, context.data_root)


def model_sources(context: RunContext) -> list[Opened]:
    """The local files of vocabulary and weights, as they are; recorded with the task's."""
    if not isinstance(context.settings.model, ModelSettings):
        return []
    from knot_runner.pipelines.text_federation import model_files

    return model_files(context.settings.model, context.data_root)
