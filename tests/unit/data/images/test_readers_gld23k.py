"""gld23k in its official layout: users, classes, splits, photographs of any size, and what is refused."""

import io

import numpy as np
import pytest
from PIL import Image

from knot_runner.data.images import load_images
from knot_runner.data.images.folders import decode
from knot_runner.util.errors import UserError
from tests.gld23k import HEADER, PHOTOGRAPHS, TEST, TRAIN, write_gld23k
from tests.golden.messages import refuses


@pytest.fixture
def load(image_task, tmp_path):
    def read(test=None, **changes):
        local = {"train": [TRAIN], "test": test or []}
        return load_images(image_task("gld23k", local=local, **{"shape": [3, 4, 4]} | changes), tmp_path)

    return read


def places(images):
    return np.rint(images.pixels.astype(float).mean((1, 2, 3)) / 15).astype(int).tolist()


def test_read_gld23k_holds_out_fifth_of_user_images(load, tmp_path):
    write_gld23k(tmp_path)
    task = load()
    assert task.user_names == ["77", "5", "1234"] and task.train.pixels.dtype == np.uint8
    assert np.bincount(task.test.users).tolist() == [1, 1, 1] and np.bincount(task.train.users).tolist() == [4, 3, 2]
    rows = [(user, label) for user, own in enumerate(PHOTOGRAPHS.values()) for _, label in own]
    for part in (task.train, task.test):
        assert [rows[place] for place in places(part)] == list(zip(part.users, part.labels, strict=True))
    assert sorted(places(task.train) + places(task.test)) == list(range(12))
    assert task.notes == [
        "gld23k: no test set, so 20% of each writer's images (3 in total) are held out",
        "gld23k: the training images cover 3 of the 203 classes",
    ]
    assert [file.path for file in task.files] == [TRAIN, "gld23k/images"]


def test_read_gld23k_reads_official_test_set_without_users(load, tmp_path):
    write_gld23k(tmp_path)
    task = load([TEST])
    assert task.test.users is None and places(task.test) == [12, 13, 14] and task.test.labels.tolist() == [3, 1, 0]
    assert places(task.train) == list(range(12)) and np.bincount(task.train.users).tolist() == [5, 4, 3]
    (tmp_path / TEST).write_text("image_id,class\nd1,1\n")  # without a column for users, too
    assert places(load([TEST]).test) == [13]


def test_decode_crops_to_the_center_and_scales():
    """A red left, green center and blue right third: of the centered square of 3 x 1 only green is left."""
    wide = np.zeros((40, 120, 3), np.uint8)
    for third in range(3):
        wide[:, 40 * third : 40 * (third + 1), third] = 200
    file = io.BytesIO()
    Image.fromarray(wide).save(file, "PNG")
    square = decode("it", file.getvalue(), [3, 8, 8])
    assert (square[:, :, 1:-1] == np.array([0, 200, 0])[:, None, None]).all()  # the last columns' filter reads beyond
    assert square.shape == (3, 8, 8) and square[1].min() > 150 and square[0, :, -1].max() == 0
    strip = decode("it", file.getvalue(), [3, 2, 6])
    assert strip.shape == (3, 2, 6)
    assert strip[:, 0, 0].tolist() == [200, 0, 0] and strip[:, 1, -1].tolist() == [0, 0, 200]
    assert decode("it", file.getvalue(), [1, 8, 8]).shape == (1, 8, 8)


@pytest.mark.parametrize("rows", [
    "9,../../x,1", "9,,1", ",a0,1", "9,a0,203", "9,a0,-1", "9,a0,1.0", "9,a0,1\n8,a0,1", "9,a0", "",
], ids=["path", "no image", "no user", "203", "-1", "1.0", "twice", "cut", "none"])  # fmt: skip
def test_read_gld23k_refuses_rows(load, tmp_path, rows):
    write_gld23k(tmp_path)
    (tmp_path / TRAIN).write_text(f"{HEADER}\n{rows}\n")
    with refuses():
        load()


def test_read_gld23k_refuses_files(load, tmp_path):
    write_gld23k(tmp_path)
    with refuses():
        load([TRAIN])
    image = tmp_path / "gld23k/images/b2.jpg"
    whole = image.read_bytes()
    image.unlink()
    with refuses():
        load()
    for broken in (b"", b"<html>no such image</html>"):
        image.write_bytes(broken)
        with pytest.raises(UserError, match=f"^{image}: not a readable PNG or JPEG image"):
            load()
    image.write_bytes(whole)
    (tmp_path / TEST).write_text(f"{HEADER}\n,a0,1\n")
    with refuses():
        load([TEST])
    (tmp_path / TRAIN).write_text("user_id,image,class\n9,a0,1\n")
    with refuses():
        load()
