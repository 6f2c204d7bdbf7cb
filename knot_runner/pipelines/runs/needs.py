"""Lower bounds on a run's memory, from its settings alone: a setting that needs more than the machine has is refused.

Nothing that could run is refused; memory for data (images of a file, say) is not counted.
"""

from __future__ import annotations

from math import prod
from typing import Any

from knot_runner.config.settings import (
    CoresetKnnSettings,
    CoresetSettings,
    EncoderSettings,
    FederatedTraining,
    FedwadSettings,
    GaussiansSettings,
    ImageSetsSettings,
    ImageTaskSettings,
    ModelSettings,
    OtddSettings,
    Settings,
    TaskSettings,
)
from knot_runner.config.settings.networks import ImageModel
from knot_runner.util.memory import require_memory

#: Bytes of a float32, and of a float64 or int64.
SHORT, LONG = 4, 8
#: Images of scikit-learn's handwritten digits.
MAX_DIGITS = 1797
#: A model in training. Stages, AdamW: weights, gradients, two moments; rounds: the server's, a client's, gradients.
TRAINED_STAGES, TRAINED_IMAGES = 4, 3
#: Kind of an image model -> the setting that its size is most often due to.
LARGEST = {
    "mlp": "hidden",
    "cnn": "hidden",
    "resnet": "width",
    "wrn": "widen",
    "vgg": "stages",
    "mobilenet": "width",
    "custom": "target",
}
#: Bytes of a generated or random text of one token or row, at the least.
TEXT = 16


def check_memory(settings: Settings, hp: Any) -> None:
    """Raises :class:`UserError` naming the key that needs more memory than this machine has."""
    task = settings.task
    if isinstance(task, GaussiansSettings):
        _gaussians(task, hp.fedwad)
    elif isinstance(task, TaskSettings):
        _texts(settings, hp)
        _points(hp, None)
    else:
        _images(task)
        _image_models(settings, hp)
        _points(hp, prod(task.shape))


def _gaussians(task: GaussiansSettings, fedwad: FedwadSettings) -> None:
    second = task.samples // task.ratio
    require_memory(
        (task.samples + second) * task.dimension * LONG,
        "task.dimension",
        f"{task.samples} samples of {task.dimension} numbers",
    )
    require_memory(
        task.samples * second * LONG, "task.samples", f"distances between {task.samples} and {second} samples"
    )
    if fedwad.mode == "approximate":
        _support("method.fedwad.support", fedwad, task.dimension, task.samples)


def _support(key: str, fedwad: FedwadSettings, dimension: int, samples: int = 1) -> None:
    size = fedwad.support * (dimension + samples) * LONG
    require_memory(size, key, f"a measure of {fedwad.support} points of {dimension} numbers")


def _images(task: ImageTaskSettings | ImageSetsSettings) -> None:
    if task.source == "embedded":
        channels, height, width = task.shape
        size = MAX_DIGITS * height * width * (LONG + channels)
        require_memory(size, "task.shape", f"{MAX_DIGITS} images of {channels}x{height}x{width}")


def _image_models(settings: Settings, hp: Any) -> None:
    """Checks the model, or the clients' architectures in its place."""
    if settings.training is None or settings.model is None:
        return
    architectures = [(f"method.models[{number}]", spec) for number, spec in enumerate(getattr(hp, "models", []))]
    for where, spec in architectures or [("model", settings.model)]:
        _image_model(settings, where, spec)


def _image_model(settings: Settings, where: str, spec: ImageModel) -> None:
    """Checks the model's size, measured on the model itself, built without allocating memory."""
    from knot_runner.engine.federated import flat
    from knot_runner.models.network import Network

    task = settings.task
    classes = min(len(task.classes), 10) if task.source == "embedded" else len(task.classes)  # digits
    layout = flat.layout_of(Network(spec, tuple(task.shape), classes))
    key = LARGEST[spec.kind]
    if any(field.name.startswith("convs.") and prod(field.shape) * 2 > layout.size for field in layout.parameters):
        key = "convs"
    copies = TRAINED_IMAGES if isinstance(settings.training, FederatedTraining) else TRAINED_STAGES
    trained = copies * SHORT * layout.size
    require_memory(trained, f"{where}.{key}", f"a model of {layout.size:,} parameters")


def _points(hp: Any, pixels: int | None) -> None:
    """Checks coresets, interpolating measures of distances, and feature extractors; ``pixels`` None: texts."""
    if isinstance(hp, CoresetSettings | CoresetKnnSettings):
        dimension = _dimension("method", hp, pixels)
        require_memory(
            hp.points * dimension * 2 * LONG, "method.points", f"a coreset of {hp.points} points of {dimension} numbers"
        )
        _support("method.fedwad.support", hp.fedwad, dimension)
    otdd, where = getattr(hp, "otdd", None), "method.otdd"
    if otdd is None and getattr(hp, "clustering", None) is not None:
        otdd, where = hp.clustering.otdd, "method.clustering.otdd"
    if otdd is not None:
        _support(f"{where}.fedwad.support", otdd.fedwad, _dimension(where, otdd, pixels))


def _dimension(where: str, described: OtddSettings | CoresetSettings | CoresetKnnSettings, pixels: int | None) -> int:
    """Returns a lower bound on a point's dimension."""
    if pixels is not None:
        return _encoder(f"{where}.encoder", described.encoder, pixels)
    features = described.features
    if features is None or features.kind == "cls":
        return 1
    size = features.components**2 * LONG  # of at least as many words
    require_memory(size, f"{where}.features.components", f"a decomposition with {features.components} components")
    return features.components


def _encoder(key: str, spec: EncoderSettings | None, pixels: int) -> int:
    """Returns a point's dimension: pixels, or the encoder's code (for convolutions at least the channels)."""
    if spec is None:
        return pixels
    inputs = 1 if spec.kind == "conv" else pixels
    pairs = zip([inputs, *spec.sizes], spec.sizes, strict=False)
    weights = (16 if spec.kind == "conv" else 1) * sum(a * b for a, b in pairs)
    require_memory(2 * weights * SHORT, f"{key}.sizes", f"an autoencoder of {2 * weights:,} parameters or more")
    return spec.sizes[-1]


def _texts(settings: Settings, hp: Any) -> None:
    from knot_runner.models.bert import party_model

    task, model = settings.task, settings.model
    for name, data in task.datasets.items() if task.source == "embedded" else ():
        if data.embedded is not None:
            rows = data.embedded.rows
            require_memory(rows * TEXT, f"task.datasets.{name}.embedded.rows", f"{rows} generated texts")
    where = "method" if getattr(hp, "distil", None) is None else "method.distil"
    bias = getattr(hp if where == "method" else hp.distil, "bias", None)
    if bias is not None:
        require_memory(
            bias.texts * bias.tokens * LONG, f"{where}.bias.texts", f"{bias.texts} texts of {bias.tokens} pieces"
        )
    for number, spec in enumerate(getattr(hp, "models", [])):
        size = parameters(spec)
        where = f"method.models[{number}].{_largest(spec)}"
        require_memory(TRAINED_STAGES * SHORT * size, where, f"a model of more than {size:,} parameters")
    for name in task.datasets:
        own = party_model(model, name)
        changed = [key for key in ("hidden", "intermediate", "layers") if getattr(own, key) != getattr(model, key)]
        where = f"model.per_party.{name}.{changed[0]}" if changed else f"model.{_largest(own)}"
        size = parameters(own)
        require_memory(TRAINED_STAGES * SHORT * size, where, f"a model of more than {size:,} parameters")


def parameters(spec: ModelSettings) -> int:
    """Returns the number of weights in the encoder's matrices (attention 4 H^2, feed-forward 2 H I), without vocabulary
    and head: a lower bound."""
    return spec.layers * (4 * spec.hidden**2 + 2 * spec.hidden * spec.intermediate)


def _largest(spec: ModelSettings) -> str:
    return "intermediate" if spec.intermediate > 2 * spec.hidden else "hidden"
