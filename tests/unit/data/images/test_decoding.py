"""What is seen in a PNG or JPEG file does not depend on the reader: transparency, orientation, kinds of pixels."""

import io

import datasets
import numpy as np
import pytest
from PIL import Image

from knot_runner.data.images import load_images
from tests.golden.messages import refuses

HEIGHT, WIDTH = 6, 4
#: blocks of 2x2, which JPEG keeps nearly as they are
COLORS = np.kron(np.random.default_rng(0).integers(40, 216, (3, 2, 3)), np.ones((2, 2, 1))).astype(np.uint8)
GRAY = COLORS[..., 0]
ALPHA = np.where(np.arange(HEIGHT)[:, None] < 2, 0, np.where(np.arange(WIDTH) < 2, 255, 128)).astype(np.uint8)
WHITE = np.full_like(COLORS, 255)


def save(pixels, mode=None, kind="PNG", **options):
    image, file = Image.fromarray(pixels), io.BytesIO()
    (image.convert(mode) if mode else image).save(file, kind, **options)
    return file.getvalue()


def palette(pixels, transparent):
    """``pixels`` (palette numbers) as a PNG of palette color k = (k, k, k), one number of which is transparent."""
    image, file = Image.fromarray(pixels), io.BytesIO()
    image = image.convert("P")
    image.putdata(pixels.ravel().tolist())
    image.putpalette(np.repeat(np.arange(256, dtype=np.uint8), 3).tobytes())
    image.save(file, "PNG", transparency=transparent)
    return file.getvalue()


def turned(orientation, turns, flip, kind="PNG"):
    """COLORS as a camera stores them: a file whose EXIF orientation asks for ``turns`` quarters after a flip."""
    stored = np.rot90(COLORS, -turns)
    stored = stored[:, ::-1] if flip else stored
    exif = Image.Exif()
    exif[0x0112] = orientation
    return save(np.ascontiguousarray(stored), kind=kind, exif=exif, **({"quality": 100} if kind == "JPEG" else {}))


def over_white(pixels, alpha):
    share = alpha[..., None] / 255
    return share * pixels + (1 - share) * 255


def gray(pixels):
    return np.repeat(pixels[..., None], 3, axis=2)


#: name -> file, what is seen in it [H, W, 3], and how far rounding (or JPEG) may be from that
SEEN = {
    "colors": (save(COLORS), COLORS, 0),
    "gray": (save(GRAY), gray(GRAY), 0),
    "bits": (save(GRAY > 128), gray((GRAY > 128) * 255), 0),
    "alpha": (save(np.dstack([COLORS, ALPHA])), over_white(COLORS, ALPHA), 1),
    "gray and alpha": (save(np.dstack([GRAY, ALPHA])), over_white(gray(GRAY), ALPHA), 1),
    "black on transparent": (save(np.dstack([0 * COLORS, ALPHA])), over_white(0 * COLORS, ALPHA), 1),
    "opaque alpha": (save(np.dstack([COLORS, 0 * ALPHA + 255])), COLORS, 0),
    "transparent gray": (save(GRAY, transparency=int(GRAY[0, 0])), gray(np.where(GRAY[0, 0] == GRAY, 255, GRAY)), 0),
    "transparent palette color": (palette(GRAY, int(GRAY[0, 0])), gray(np.where(GRAY[0, 0] == GRAY, 255, GRAY)), 0),
    "transparent color": (
        save(COLORS, transparency=tuple(COLORS[0, 0].tolist())),
        np.where((COLORS[0, 0] == COLORS).all(2, keepdims=True), WHITE, COLORS),
        0,
    ),
    "all transparent": (save(np.zeros((HEIGHT, WIDTH, 4), np.uint8)), WHITE, 0),
    "CMYK": (save(COLORS, "CMYK", "JPEG", quality=100, subsampling=0), COLORS, 6),
    "unreadable EXIF": (save(COLORS, exif=b"Exif\x00\x00no such header"), COLORS, 0),
    "flipped": (turned(2, 0, True), COLORS, 0),
    "upside down": (turned(3, 2, False), COLORS, 0),
    "left": (turned(6, -1, False), COLORS, 0),
    "right": (turned(8, 1, False), COLORS, 0),
    "right, JPEG": (turned(8, 1, False, "JPEG"), COLORS, 40),
}
DEEP = GRAY.astype(np.uint16) * 257
#: name -> file that every reader refuses
REFUSED = {
    "16 bits": save(DEEP), "white on transparent": save(np.dstack([WHITE, ALPHA])),
    "hidden": save(np.dstack([COLORS, 0 * ALPHA])), "another kind": save(COLORS, kind="GIF"),
}  # fmt: skip
OPAQUE = save(COLORS)
#: Every reader decodes by one function, so each further reader needs one file.
SEEN_BY = [*((name, "class folders") for name in SEEN), ("alpha", "hub bytes"), ("alpha", "hub decoded")]
REFUSED_BY = [*((name, "class folders") for name in REFUSED), ("16 bits", "hub bytes"), ("16 bits", "hub decoded")]


@pytest.fixture
def readers(image_task, write, tmp_path, monkeypatch):
    shape = {"shape": [3, HEIGHT, WIDTH], "classes": ["a", "b"]}

    def tree(data):
        others = dict.fromkeys(["train/b/x.png", "test/a/x.png", "test/b/x.png"], OPAQUE)
        write.tree(tmp_path, others | {"train/a/x.png": data})
        local = {"format": "folders", "train": ["train"], "test": ["test"]}
        return load_images(image_task("cifar10", local=local, **shape), tmp_path).train.pixels[0]

    def hub(kind):
        def read(data):
            images = [{"bytes": data, "path": None}, {"bytes": OPAQUE, "path": None}]
            rows = datasets.Dataset.from_dict({"image": images, "label": [0, 1]})
            if kind == "decoded":
                rows = rows.cast_column("image", datasets.Image())
            monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: rows)
            source = {"id": "some/set", "revision": "abc", "splits": {"train": "train", "test": "test"}}
            columns = {"image": "image", "label": "label", "user": None}
            return load_images(image_task("cifar10", source="hub", hub=source | columns, **shape), None).train.pixels[0]

        return read

    return {"class folders": tree, "hub bytes": hub("bytes"), "hub decoded": hub("decoded")}


@pytest.mark.parametrize(("name", "reader"), SEEN_BY)
def test_decoding_keeps_what_is_seen(readers, reader, name):
    data, seen, tolerance = SEEN[name]
    actual = readers[reader](data)
    assert actual.shape == (3, HEIGHT, WIDTH) and actual.dtype == np.uint8
    assert np.abs(actual.transpose(1, 2, 0).astype(float) - seen).max() <= tolerance


@pytest.mark.parametrize(("name", "reader"), REFUSED_BY)
def test_decoding_refuses_content_it_would_lose(readers, reader, name):
    with refuses():
        readers[reader](REFUSED[name])


PIXELS = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
LABELS = [i % 5 for i in range(20)]
WRITERS = [f"f{i % 4}" for i in range(20)]


def rows(at, **columns):
    images = [Image.fromarray(image) for image in PIXELS[at]]
    content = {"image": images, "character": LABELS[at], "writer_id": WRITERS[at], "unread": LABELS[at]} | columns
    kinds = {name: datasets.Image() for name in ("image",) if isinstance(content[name][0], Image.Image)}
    made = datasets.Dataset.from_dict(content)
    return made.cast(datasets.Features(made.features | kinds)) if kinds else made


@pytest.fixture
def calls(monkeypatch):
    made = []

    def load_dataset(identity, config, *, revision, split):
        made.append((identity, config, revision, split))
        return rows(slice(15, 20) if split == "test" else slice(0, 15))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return made


@pytest.fixture
def load(image_task):
    def read(**changes):
        columns = {"image": "image", "label": "character", "user": "writer_id"}
        hub = {"id": "some/digits", "revision": "abc", "splits": {"train": "train", "test": "test"}} | columns
        return load_images(image_task("femnist", source="hub", hub=hub | changes), None)

    return read


def test_hub_images_have_labels_and_writers(load, calls):
    task = load(config="c")
    assert calls == [("some/digits", "c", "abc", split) for split in ("train", "test")]
    np.testing.assert_array_equal(task.train.pixels[:, 0], PIXELS[:15])
    np.testing.assert_array_equal(task.test.pixels[:, 0], PIXELS[15:])
    assert task.train.labels.tolist() == LABELS[:15]
    assert [task.user_names[u] for u in task.train.users] == WRITERS[:15]
    assert [task.user_names[u] for u in task.test.users] == WRITERS[15:]
    assert task.train.files is None and task.source == "hub"


def test_hub_writers_match_across_number_types(load, monkeypatch):
    """A split with a missing writer stores whole numbers as floats."""
    writers = {"train": [7.0, 8.0, None] * 5, "test": [7, 8, 9, 7, 8]}

    def load_dataset(*_, split, **__):
        return rows(slice(15, 20) if split == "test" else slice(0, 15), writer_id=writers[split])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    task = load()
    assert task.user_names == ["7", "8", "9"]
    assert task.train.users.tolist() == [0, 1, -1] * 5 and task.test.users.tolist() == [0, 1, 2, 0, 1]


def test_hub_split_is_cut_by_writer(load, calls):
    task = load(splits={"train": "train"})
    assert sorted(task.test.users.tolist()) == [0, 1, 2, 3] and len(task.train) == 11
    assert "femnist: no test set, so 10% of each writer's images (4 in total) are held out" in task.notes


@pytest.mark.parametrize(("columns", "changes"), [
    ({"character": [0.5] * 15}, {}), ({"character": [0] * 14 + [62]}, {}), ({"character": [-1] * 15}, {}),
    ({"image": ["x"] * 15}, {}), ({"image": [{"bytes": b"x"}] * 15}, {}), ({}, {"label": "charakter"}),
    ({}, {"user": "writer"}), ({}, {"splits": {"test": "test"}}), ({}, {"splits": {"train": "a", "valid": "b"}}),
])  # fmt: skip
def test_hub_images_refuse_unfit_columns_and_settings(load, monkeypatch, columns, changes):
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: rows(slice(0, 15), **columns))
    with refuses():
        load(**changes)
