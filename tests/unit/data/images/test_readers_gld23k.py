"""gld23k in its official layout: users, classes, splits, photographs of any size, and what is refused."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from knot_runner.data.images import load_images
from knot_runner.data.images.decoding import decode
from knot_runner.data.tasks import ImageTask
from knot_runner.util.errors import UserError
from tests.gld23k import HEADER, PHOTOGRAPHS, TEST, TRAIN, write_gld23k
from tests.golden.messages import refuses


@pytest.fixture
def load(image_task, tmp_path: Path):
    def read(test: list[str] | None = None, **changes) -> ImageTask:
        local = {"train": [TRAIN], "test": test or []}
        return load_images(image_task("gld23k", local=local, **{"shape": [3, 4, 4]} | changes), tmp_path)

    return read


def places(images) -> list[int]:
    """The places of the fake's images, read off their grey levels."""
    return np.rint(images.pixels.astype(float).mean((1, 2, 3)) / 15).astype(int).tolist()


def test_a_fifth_of_every_users_own_images_is_held_out(load, tmp_path: Path) -> None:
    write_gld23k(tmp_path)
    task = load()
    assert task.user_names == ["77", "5", "1234"] and task.train.pixels.dtype == np.uint8
    assert np.bincount(task.test.users).tolist() == [1, 1, 1] and np.bincount(task.train.users).tolist() == [4, 3, 2]
    rows = [(user, label) for user, own in enumerate(PHOTOGRAPHS.values()) for _, label in own]
    for part in (task.train, task.test):
        assert [rows[place] for place in places(part)] == list(zip(part.users, part.labels, strict=True))
    assert sorted(places(task.train) + places(task.test)) == list(range(12))
    assert task.notes == [
        "gld23k: no test set of its own; 20% of each writer's images, 3, are held out",
        "gld23k: the training images are of 3 of the 203 classes",
    ]
    assert [file.path for file in task.files] == [TRAIN, "gld23k/images"]


def test_the_official_test_set_has_no_users(load, tmp_path: Path) -> None:
    write_gld23k(tmp_path)
    task = load([TEST])
    assert task.test.users is None and places(task.test) == [12, 13, 14] and task.test.labels.tolist() == [3, 1, 0]
    assert places(task.train) == list(range(12)) and np.bincount(task.train.users).tolist() == [5, 4, 3]
    (tmp_path / TEST).write_text("image_id,class\nd1,1\n")  # without a column for users, too
    assert places(load([TEST]).test) == [13]


def test_photographs_are_cut_to_the_centre_and_scaled() -> None:
    """A red left, green centre and blue right third: of the centred square of 3 x 1 only green is left."""
    wide = np.zeros((40, 120, 3), np.uint8)
    for third in range(3):
        wide[:, 40 * third : 40 * (third + 1), third] = 200
    file = io.BytesIO()
    Image.fromarray(wide).save(file, "PNG")
    square = decode("it", file.getvalue(), [3, 8, 8])
    assert (square[:, :, 1:-1] == np.array([0, 200, 0])[:, None, None]).all()  # the last columns' filter reads beyond
    assert square.shape == (3, 8, 8) and square[1].min() > 150 and square[0, :, -1].max() == 0
    strip = decode("it", file.getvalue(), [3, 2, 6])
    assert (
        strip.shape == (3, 2, 6) and strip[:, 0, 0].tolist() == [200, 0, 0] and strip[:, 1, -1].tolist() == [0, 0, 200]
    )
    assert decode("it", file.getvalue(), [1, 8, 8]).shape == (1, 8, 8)
    with refuses():
        decode("it", file.getvalue(), [2, 8, 8])


def refusal(load, *arguments, **changes) -> str:
    with pytest.raises(UserError) as refused:
        load(*arguments, **changes)
    assert "\n" not in str(refused.value)
    return str(refused.value)


BAD_ROWS = {
    "9,../../x,1": "line 2: image_id '../../x' is no name of letters and digits",
    "9,,1": "line 2: has no image_id; the columns are user_id, image_id, class",
    ",a0,1": "line 2: has no user_id; the columns are user_id, image_id, class",
    "9,a0,203": "line 2: class '203' is not one of task.classes, 0 to 202",
    "9,a0,-1": "line 2: class '-1' is not one of task.classes, 0 to 202",
    "9,a0,1.0": "line 2: class '1.0' is not one of task.classes, 0 to 202",
    "9,a0,1\n8,a0,1": "line 3: image a0 is there a second time",
    "9,a0": "line 2: 2 fields where the header has 3; the file is cut short or broken",
}


@pytest.mark.parametrize("rows", BAD_ROWS)
def test_rows_that_are_refused(load, tmp_path: Path, rows: str) -> None:
    write_gld23k(tmp_path)
    (tmp_path / TRAIN).write_text(f"{HEADER}\n{rows}\n")
    assert refusal(load) == f"{tmp_path / TRAIN}: {BAD_ROWS[rows]}"


def test_files_that_are_absent_or_no_images(load, tmp_path: Path) -> None:
    assert refusal(load) == f"{tmp_path / TRAIN}: is not there"
    write_gld23k(tmp_path)
    assert refusal(load, [TRAIN]) == f"task.local.test: {TRAIN} is in task.local.train too"
    image = tmp_path / "gld23k/images/b2.jpg"
    whole = image.read_bytes()
    image.unlink()
    assert refusal(load) == f"{image}: is not there, though {tmp_path / TRAIN}: line 9 names it"
    for broken in (b"", b"<html>no such image</html>", whole[:-200]):
        image.write_bytes(broken)
        assert refusal(load).startswith(f"{image}: is no readable PNG or JPEG image (")
    image.write_bytes(whole)
    (tmp_path / TEST).write_text(f"{HEADER}\n,a0,1\n")
    assert refusal(load, [TEST]) == f"{tmp_path / TEST}: line 2: image a0 is there a second time"
    (tmp_path / TRAIN).write_text("user_id,image,class\n9,a0,1\n")
    assert "line 2: has no image_id; the columns are" in refusal(load)
    (tmp_path / TRAIN).write_text(HEADER + "\n")
    assert refusal(load) == "task.local: gld23k has no train images"
