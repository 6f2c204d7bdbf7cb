"""What families check of a run's settings (``Family.check``), and build of their methods' nested ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from knot_runner.config.settings.checks.architectures import check_architectures
from knot_runner.config.settings.checks.distil import OfPlugins, check_distil, named_model
from knot_runner.config.settings.checks.personal import check_personal
from knot_runner.config.settings.checks.student_images import check_student_images
from knot_runner.config.settings.distil.distil import DistilSettings
from knot_runner.config.settings.methods.federated import FederatedSettings
from knot_runner.config.settings.methods.knot import LOSS_SETTINGS, KnotSettings, MutualSettings, TeachersSettings
from knot_runner.config.strict import build
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    from knot_runner.config.settings.run import Settings


def check_parties_method(
    _: Settings, method: KnotSettings | MutualSettings | TeachersSettings, plugins: OfPlugins
) -> None:
    """The loss of KNOT or mutual learning. Raises :class:`UserError`."""
    if isinstance(method, TeachersSettings):
        return
    if "name" not in method.loss:
        raise UserError("method.loss.name: is not set")
    _check_loss(method.loss, "method.loss")


def check_distil_method(settings: Settings, method: DistilSettings, plugins: OfPlugins) -> None:
    """Schedule, terms and teachers, and the student's images. Raises :class:`UserError`."""
    check_distil(method, settings.task.name, settings.on_images, settings.training.distil.batch, plugins)
    check_student_images(method, settings.task)


def check_federated_method(settings: Settings, method: FederatedSettings, plugins: OfPlugins) -> None:
    """The clients' architectures, the server's loss and personalisation. Raises :class:`UserError`."""
    method.models = [
        named_model(model, f"method.models[{number}]", settings.task.name, settings.on_images, plugins)
        for number, model in enumerate(method.models)
    ]
    check_architectures(method, settings.model)
    if method.distil is not None:
        _check_loss(method.distil.loss, "method.distil.loss")
    check_personal(settings, method)


def _check_loss(loss: dict[str, Any], where: str) -> None:
    """Of a plug-in's loss, the run checks the options, which has loaded the plug-ins."""
    if loss["name"] in LOSS_SETTINGS:
        build(LOSS_SETTINGS[loss["name"]], loss, where)
