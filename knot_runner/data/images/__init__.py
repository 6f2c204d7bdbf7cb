"""Image tasks: readers of images, and partitions of images among clients."""

from knot_runner.data.images.load import load_images
from knot_runner.data.images.partition import make_partition
from knot_runner.data.tasks import Images, ImageTask, Partition

__all__ = ["ImageTask", "Images", "Partition", "load_images", "make_partition"]
