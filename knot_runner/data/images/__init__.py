"""Image tasks: what was read, as plain arrays, and how it is dealt to clients."""

from knot_runner.data.images.load import load_images
from knot_runner.data.images.partition import make_partition
from knot_runner.data.images.types import Images, ImageTask, Partition

__all__ = ["ImageTask", "Images", "Partition", "load_images", "make_partition"]
