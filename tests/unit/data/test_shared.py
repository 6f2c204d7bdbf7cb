"""Tasks that jobs of one process share: read once, held once, never mixed up, and never changed."""

import copy
import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest

from knot_runner.composing.commands import compose_all
from knot_runner.data import shared
from knot_runner.data.images import load_images
from knot_runner.data.load import load_task
from knot_runner.data.shared import SharedTasks
from knot_runner.util.errors import UserError
from tests.golden.messages import refuses
from tests.tiny import TINY, TINY_IMAGES


def job(*overrides):
    jobs, _ = compose_all(list(overrides))
    return jobs[0]


@pytest.fixture(scope="module")
def texts():
    return job(*TINY).settings.task


@pytest.fixture(scope="module")
def images():
    return job("method=fedavg_chill", *TINY_IMAGES).settings.task


@pytest.fixture
def limits(monkeypatch):
    """``task.max_examples`` of all texts that are loaded."""
    actual = []

    def load_task_(settings, root):
        actual.append(settings.max_examples)
        return load_task(settings, root)

    monkeypatch.setattr(shared, "load_task", load_task_)
    return actual


def limited(settings, limit):
    return dataclasses.replace(settings, max_examples=limit)


def test_shared_tasks_are_what_the_loaders_read(texts, images, tmp_path):
    tasks = SharedTasks()
    assert tasks.texts(texts, None).digest == load_task(texts, None).digest
    assert tasks.images(images, tmp_path).digest == load_images(images, tmp_path).digest


def test_shared_tasks_load_once_across_threads(texts, limits):
    tasks = SharedTasks()
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: tasks.texts(copy.deepcopy(texts), None), range(16)))
    assert len(limits) == 1 and len({id(task) for task in made}) == 1


def test_shared_tasks_do_not_keep_an_error(texts, monkeypatch):
    answers = iter([UserError("a file: file not found"), None])

    def load_task_(settings, root):
        if (problem := next(answers)) is not None:
            raise problem
        return load_task(settings, root)

    monkeypatch.setattr(shared, "load_task", load_task_)
    tasks = SharedTasks()
    with refuses():
        tasks.texts(texts, None)
    assert tasks.texts(texts, None).digest == load_task(texts, None).digest


def test_shared_tasks_keep_the_last_ones(texts, limits, monkeypatch):
    monkeypatch.setattr(shared, "KEPT_TASKS", 2)
    tasks = SharedTasks()
    for limit in (20, 30, 20, 40, 20, 30):
        tasks.texts(limited(texts, limit), None)
    assert limits == [20, 30, 40, 30]
