"""A reader of one's own: pixels and labels in numpy's .npz files (``task.local.format=npz``)."""

import numpy as np

from knot_runner.config.settings.image_tasks import IMAGE_READERS
from knot_runner.data.images.checks import by_part
from knot_runner.data.tasks import Images
from knot_runner.util.errors import UserError


def read_npz(folder, entries, part, settings):
    """Images of ``entries``: uint8 ``pixels`` [N, C, H, W] and whole ``labels`` [N]; ``part``: train or test."""
    for entry in entries:
        path = folder.file(folder.path(entry))  # it is there, fits its checksum, and is in the run's record
        try:
            with np.load(path) as arrays:
                images = Images(arrays["pixels"], arrays["labels"].astype(np.int64))
        except Exception as problem:  # numpy's own, and those of zip files
            raise UserError(f"cannot be read ({problem})", path) from None
        yield path, images  # whose shape and labels are checked against the task


IMAGE_READERS["npz"] = by_part(read_npz)
