"""Fixtures of image files and tasks."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from knot_runner.config.settings.image_tasks import ImageTaskSettings
from knot_runner.data.images import ImageTask, load_images
from tests import image_files


@pytest.fixture
def write() -> ModuleType:
    """The writers of all layouts."""
    return image_files


@pytest.fixture
def image_task() -> Callable[..., ImageTaskSettings]:
    return image_files.image_settings


@pytest.fixture
def load_cifar(tmp_path: Path) -> Callable[..., ImageTask]:
    """Reads an entry of ``tmp_path`` as a release of CIFAR."""

    def read(entry: str, name: str = "cifar10", **changes: Any) -> ImageTask:
        local = {"format": "cifar", "train": [entry], "test": [entry]}
        return load_images(image_files.image_settings(name, local=local, **changes), tmp_path)

    return read
