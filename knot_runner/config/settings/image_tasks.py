"""Settings of an image task: classes, image shape, and the source of the images."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from knot_runner.config.plugins import Table, load
from knot_runner.config.settings.sizes import NOT_NEGATIVE, Fraction, ImageSide, MaxExamples, Spread
from knot_runner.config.settings.text_tasks import check_labels
from knot_runner.config.strict import AtMost, require
from knot_runner.util.errors import Misfit, nearest

#: the format of images without labels, which a transfer set may have
UNLABELED_FORMAT = "files"
#: ``task.local.format`` -> reader of this format, imported on first use. Plug-ins may add readers.
IMAGE_READERS: Table[Any] = Table("IMAGE_READERS", {
    "leaf": "knot_runner.data.images.leaf:read_leaf",
    "cifar": "knot_runner.data.images.cifar:read_cifar",
    "idx": "knot_runner.data.images.idx:read_idx",
    "usps": "knot_runner.data.images.idx:read_usps",
    "folders": "knot_runner.data.images.folders:read_folders",
    "gld23k": "knot_runner.data.images.gld23k:read_gld23k",
    UNLABELED_FORMAT: "knot_runner.data.images.folders:read_files",
}, lambda where, reader: load("knot_runner.data.images.checks:checked_image_reader")(where, reader))  # fmt: skip
#: the label of an example that has none
UNLABELED = -1


@dataclass
class ImageFiles:
    """Image files. Paths are relative to ``paths.data_dir``.

    ``format=leaf``: JSON files or folders. ``format=cifar``: batches or archives. ``format=idx``: images and labels.
    ``format=usps``: text files. ``format=folders``: folder or zip with one folder per class.
    ``format=gld23k``: CSV of user_id, image_id, class; images in ``CSV_FOLDER/../images``. ``format=files``: unlabeled
    images for ``transfer``. Plug-ins can add formats.
    """

    #: file format
    format: str
    #: training files or folders
    train: list[str]
    #: test files or folders; empty uses ``holdout``
    test: list[str]


@dataclass
class ImageHub:
    """Images on the Hugging Face hub."""

    #: repository, as owner/name
    id: str
    #: commit hash, or a branch
    revision: str
    #: our split (train, test) -> split name on the hub
    splits: dict[str, str]
    #: image column
    image: str
    #: class number column
    label: str
    #: writer column; null if none
    user: str | None = None
    #: configuration name, if several exist
    config: str | None = None


def check_pixels(shape: list[int], mean: list[float], std: list[float]) -> None:
    """Check that ``shape`` has three positive sizes, and that each channel has a ``mean`` and a positive ``std``."""
    require(len(shape) == 3 and min(shape) >= 1, "shape", f"expected [channels, height, width], got {shape}")
    for key, values in (("mean", mean), ("std", std)):
        require(
            len(values) == shape[0], key, f"expected one value per channel (channels: {shape[0]}), got {len(values)}"
        )
    require(min(std) > 0, "std", f"expected numbers above 0, got {std}")


@dataclass
class ImageTaskSettings:
    """An image task: classes, shape and sources of images."""

    name: str
    kind: Literal["images"]
    #: scikit-learn's handwritten digits scaled to ``shape`` (embedded), files below ``paths.data_dir``, or the hub
    source: Literal["embedded", "local", "hub"]
    #: class names in numeric order
    classes: list[str]
    #: one point per class, for semantic distance; null if undefined
    coordinates: list[list[Spread]] | None
    #: class distances: from ``coordinates``, sqrt(2) for all, or 1 within and 2 between ``superclasses``
    geometry: Literal["given", "onehot", "superclasses"]
    #: superclass -> its classes; each class belongs to one
    superclasses: dict[str, list[str]] | None = field(default=None, kw_only=True)
    #: [channels, height, width]
    shape: list[ImageSide]
    #: mean of each channel, for pixel values from 0 to 1
    mean: list[Spread]
    #: standard deviation of each channel
    std: list[Spread]
    #: training augmentation; crop_flip: pad by 4 (reflect), random crop, horizontal flip
    augment: Literal["none", "crop_flip"]
    #: location on disk; null if unavailable
    local: ImageFiles | None
    #: location on the Hugging Face hub; null if unavailable
    hub: ImageHub | None
    #: maximum training images, stratified; the test set shrinks in proportion; null keeps all
    max_examples: MaxExamples | None
    #: test share if the source has no test set
    holdout: Fraction
    #: seed for ``max_examples`` and ``holdout``
    cut_seed: Annotated[int, AtMost(2**32 - 1), NOT_NEGATIVE]

    @property
    def on_tree(self) -> bool:
        """Return whether class distances come from a tree of classes instead of ``coordinates``."""
        return self.geometry != "given" or self.coordinates is None

    def __post_init__(self) -> None:
        check_labels("classes", self.classes, self.coordinates)
        check_pixels(self.shape, self.mean, self.std)
        if self.geometry == "superclasses":
            self._check_superclasses()

    def _check_superclasses(self) -> None:
        superclasses = self.superclasses or {}
        require(bool(superclasses), "superclasses", "required by task.geometry=superclasses, but not set")
        listed = Counter(itertools.chain(*superclasses.values()))
        for name in self.classes:
            require(listed[name] == 1, "superclasses", f"class {name!r} is in {listed[name]} superclasses, expected 1")
        for name in listed:
            require(name in self.classes, "superclasses", f"unknown class {name!r}{nearest(name, self.classes)}")


def transfer_keys(line: str) -> str:
    """Return the message ``line`` with ``task.`` replaced by ``transfer.`` in keys such as ``task.local``."""
    return re.sub(r"\btask\.(?=(local|hub|source|shape|classes)\b)", "transfer.", line)


def check_not_own(images: ImageTaskSettings, task: ImageTaskSettings) -> None:
    """Check that a transfer set is not the data set of the task.

    Args:
        images: Settings of the transfer set.
        task: Settings of the task.

    Raises:
        UserError: The transfer set and the task use the same hub repository or the same local file.
    """
    same = images.hub is not None and task.hub is not None and images.hub.id == task.hub.id
    if images.local is not None and task.local is not None:
        files = {*images.local.train, *images.local.test}
        same = same or not files.isdisjoint([*task.local.train, *task.local.test])
    if same:
        why = "they are the same data set"
        hint = "Use partition.transfer=SHARE to use a share of the training images as the transfer set"
        raise Misfit(f"transfer={images.name}", f"task={task.name}", why, hint)
