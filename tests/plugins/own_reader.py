"""A reader of one's own: pixels and labels in numpy's .npz files (``task.local.format=npz``)."""

import numpy as np

from knot_runner.data.images.checks import by_part, check_image_labels, check_shape, concatenate_images
from knot_runner.data.images.load import IMAGE_READERS
from knot_runner.data.tasks import Images
from knot_runner.util.errors import UserError


def read_npz(folder, entries, part, shape, classes):
    """Images of ``entries``: uint8 ``pixels`` [N, C, H, W] and whole ``labels`` [N]; ``part``: train or test."""
    files = []
    for entry in entries:
        path = folder.file(folder.path(entry))  # it is there, fits its checksum, and is in the run's record
        try:
            with np.load(path) as arrays:
                images = Images(arrays["pixels"], arrays["labels"].astype(np.int64))
        except Exception as problem:  # numpy's own, and those of zip files
            raise UserError(f"cannot be read ({problem})", path) from None
        check_shape(path, images.pixels.shape[1:], shape)
        check_image_labels(path, images.labels, len(classes))
        files.append(images)
    return concatenate_images(f"task.local.{part}", files)


IMAGE_READERS["npz"] = by_part(read_npz)
