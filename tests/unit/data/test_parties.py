"""Images dealt to the parties of a distillation."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from knot_runner import compose
from knot_runner.config.settings.partition import Dirichlet, Iid, PartyShares, party_shares
from knot_runner.data.images.held_out import UnlabeledImages, fit_images, load_unlabeled, with_transfer
from knot_runner.data.images.load import read_digits
from knot_runner.data.images.partition import make_partition
from knot_runner.data.parties import divide_images, image_parties
from knot_runner.data.tasks import Images, ImageTask
from tests import image_files
from tests.golden.messages import refuses

SHARES = PartyShares(server=0.2, transfer=0.3, valid=0.1)


def task(train=200, test=60, coordinates=None, classes=4):
    """Images whose one pixel is their number."""

    def images(count, first):
        numbers = np.arange(first, first + count, dtype=np.float32).reshape(-1, 1, 1, 1)
        return Images(numbers, np.arange(count) % classes)

    names = [f"class {k}" for k in range(classes)]
    parts = images(train, 0), images(test, 1000)
    return ImageTask("demo", names, coordinates, *parts, [0.0], [1.0], "local", notes=["a note"])


def numbers(images):
    return images.pixels.ravel().astype(int).tolist()


def parties(seed=0, shares=SHARES, partition=None, **options):
    return image_parties(task(**options), partition or Iid("iid", 4), shares, seed)


def test_image_parties_share_all_images():
    made = parties()
    assert {name: data.role for name, data in made.datasets.items()} == {
        **{f"client {k}": "local" for k in range(4)}, "server": "global", "transfer": "transfer",
    }  # fmt: skip
    parts = {
        name: {split: numbers(part) for split, part in data.splits.items()} for name, data in made.datasets.items()
    }
    assert sorted(sum((own["train"] + own["valid"] for own in parts.values()), [])) == list(range(200))
    sizes = {name: [len(part) for part in own.values()] for name, own in parts.items()}
    assert sizes["server"] == [36, 4, 60] and sizes["transfer"] == [54, 6]
    assert [sum(sizes[f"client {k}"][:2]) for k in range(4)] == [25] * 4
    for name in ("server", "transfer"):  # every class as often
        assert len(set(np.bincount(np.array(parts[name]["train"] + parts[name]["valid"]) % 4))) == 1
    assert parts["server"]["test"] == list(range(1000, 1060))
    assert sorted(sum((parts[f"client {k}"]["test"] for k in range(4)), [])) == list(range(1000, 1060))
    for data in made.datasets.values():  # labels are hidden of the transfer set alone
        for part in data.splits.values():
            known = [-1] * len(part) if data.role == "transfer" else [number % 1000 % 4 for number in numbers(part)]
            assert part.labels.tolist() == known


def test_image_parties_are_drawn_by_the_seed():
    def dealt(seed):
        made = parties(seed)
        return {name: numbers(data.splits["train"]) for name, data in made.datasets.items()}

    one, other = dealt(0), dealt(1)
    assert one == dealt(0)
    assert all(one[name] != other[name] for name in one)
    left = [numbers(divide_images(task(), SHARES, seed)[2]) for seed in (0, 1)]
    assert left[0] != left[1]
    other = dataclasses.replace(task(), transfer=task().train)  # the same for both seeds, but for what is held out
    shares = PartyShares(server=0.2, transfer=None, valid=0.1)
    made = [image_parties(other, Iid("iid", 4), shares, seed).datasets["transfer"] for seed in (0, 1)]
    assert numbers(made[0].splits["valid"]) != numbers(made[1].splits["valid"])


def test_image_parties_partition_what_is_left():
    uneven = Dirichlet("dirichlet", 3, 0.5, 0)
    left = dataclasses.replace(task(), train=divide_images(task(), SHARES, 5)[2])
    dealt = make_partition(uneven, left, 5)
    for name, rows in zip(dealt.names, dealt.train, strict=True):
        splits = parties(seed=5, partition=uneven).datasets[name].splits
        assert sorted(numbers(splits["train"]) + numbers(splits["valid"])) == sorted(numbers(left.train.take(rows)))


def test_image_parties_default_to_one_hot_coordinates():
    made = parties()
    assert made.labels.coordinates == np.eye(4).tolist()
    said = "demo has no class coordinates, so all distances are sqrt(2) (task.geometry=onehot)"
    assert made.notes == ["a note", said]
    points = [[0.0], [1.0], [2.0], [3.0]]
    assert parties(coordinates=points).labels.coordinates == points


def test_party_shares_leave_images_to_clients():
    for train, classes, clients in ((2, 2, 4), (30, 4, 15), (40, 4, 30)):
        with refuses():
            parties(train=train, classes=classes, partition=Iid("iid", clients))
    stages = dict.fromkeys(("local", "pretrain", "distill"), {"select": "last"})
    given = {"partition": {"server": 0.6, "valid": None}, "method": {"algorithm": "knot"}, "training": stages}
    assert party_shares(given) == {"server": 0.6, "transfer": 0.2, "valid": None}
    best = given | {"training": stages | {"local": {"select": "best"}}}
    assert party_shares(best) == {"server": 0.6, "transfer": 0.2, "valid": 0.1}
    assert party_shares(given | {"transfer": {"name": "usps"}})["transfer"] is None


LEVELS = np.round(np.random.default_rng(0).uniform(-1, 1, (30, 256)), 3)


def settings(*words, name="usps"):
    """Of ``transfer`` in a composed command."""
    (job,) = compose(["task=mnist", "method=entropy_a", "partition=small", f"transfer={name}", *words])
    return job.settings.transfer


def write_usps(root, labels, levels=LEVELS):
    (root / "usps").mkdir(exist_ok=True)
    image_files.usps(root / "usps" / "zip.test.gz", list(labels), levels)


def gray(count, side, value=0.5, channels=1):
    return Images(np.full((count, channels, side, side), value, np.float32), np.zeros(count, np.int64))


@pytest.mark.parametrize("limit", ["null", "12"])
def test_load_unlabeled_ignores_labels(limit, tmp_path):
    """All 30 images stand in file order: no part is held out, a limit is not stratified, and no test set is read."""
    own = settings("transfer.source=local", f"transfer.max_examples={limit}", "transfer.local.test=[usps/none.gz]")
    actual = []
    for labels in (np.arange(30) % 10, np.zeros(30), np.arange(30)[::-1] % 7):
        write_usps(tmp_path, labels)
        actual.append(load_unlabeled(own, tmp_path))
    assert {one.images.digest for one in actual} == {actual[0].images.digest}
    assert set(actual[0].images.labels) == {-1} and [file.path for file in actual[0].files] == ["usps/zip.test.gz"]
    pixels, all_pixels = actual[0].images.pixels.reshape(-1, 256), ((LEVELS + 1) / 2).astype(np.float32)
    rows = [int(np.abs(all_pixels - row).sum(1).argmin()) for row in pixels]
    assert rows == sorted(set(rows)) and len(rows) == (30 if limit == "null" else 12)
    np.testing.assert_allclose(pixels, all_pixels[rows], atol=1e-6)


def test_load_unlabeled_draws_limit_by_seed(tmp_path):
    write_usps(tmp_path, np.arange(30) % 10)
    few = ["transfer.source=local", "transfer.max_examples=12"]
    digests = [load_unlabeled(settings(*few, f"transfer.cut_seed={seed}"), tmp_path).images.digest for seed in (1, 2)]
    assert digests[0] != digests[1]
    with refuses():
        load_unlabeled(settings("transfer.source=local", "transfer.max_examples=31"), tmp_path)
    actual = load_unlabeled(settings("transfer.max_examples=null"), None)  # digits, turned
    np.testing.assert_array_equal(actual.images.pixels, np.rot90(read_digits([1, 16, 16]).pixels, axes=(2, 3)))
    assert "rotated scikit-learn digits" in actual.notes[0] and set(actual.images.labels) == {-1}


@pytest.mark.parametrize("words", [
    ["transfer.source=local", "transfer.shape=[1,28,28]"], ["transfer.source=local", "transfer.local.train=[x.gz]"],
    ["transfer.source=local", "transfer.local.train=[]"], ["transfer.source=local", "transfer.local=null"],
    ["transfer.source=hub", "transfer.hub=null"],
])  # fmt: skip
def test_load_unlabeled_refuses_settings(words, tmp_path):
    write_usps(tmp_path, np.arange(30) % 10)
    with refuses():
        load_unlabeled(settings(*words), tmp_path)


def test_fit_images_scales_as_torch_does():
    pixels = np.random.default_rng(1).random((5, 1, 16, 16)).astype(np.float32)
    actual = fit_images(Images(pixels, np.full(5, -1)), np.empty((0, 1, 28, 28), np.float32))
    wanted = torch.nn.functional.interpolate(torch.from_numpy(pixels), (28, 28), mode="bilinear", align_corners=False)
    np.testing.assert_allclose(actual.pixels, wanted.numpy(), atol=1e-6)
    assert actual.pixels.dtype == np.float32


def test_fit_images_converts_gray_as_pillow_does():
    colors = np.random.default_rng(2).integers(0, 256, (4, 3, 6, 6), dtype=np.uint8)
    actual = fit_images(Images(colors, np.full(4, -1)), np.empty((0, 1, 6, 6), np.uint8)).pixels
    wanted = [np.asarray(Image.fromarray(one.transpose(1, 2, 0)).convert("L")) for one in colors]
    assert actual.dtype == np.uint8 and np.abs(actual[:, 0].astype(int) - np.stack(wanted)).max() <= 1
    back = fit_images(Images(actual, np.full(4, -1)), np.empty((0, 3, 6, 6), np.float32)).pixels
    np.testing.assert_allclose(back, np.repeat(actual, 3, axis=1) / 255, atol=1e-6)


def test_fit_images_takes_the_tasks_type_and_channels():
    own = fit_images(gray(2, 4, value=0.5005), np.empty((0, 1, 4, 4), np.uint8))
    assert own.pixels.dtype == np.uint8 and set(own.pixels.ravel()) == {128}  # 127.63, rounded
    same = gray(2, 4)
    assert fit_images(same, np.empty((0, 1, 4, 4), np.float32)) is same
    with refuses():
        fit_images(gray(1, 4, channels=2), np.empty((0, 3, 4, 4), np.float32))


@pytest.mark.parametrize("home", ["pictures", "pictures/some"])
def test_load_unlabeled_reads_a_folder_of_images(home, tmp_path):
    (tmp_path / home).mkdir(parents=True)
    wide = np.zeros((28, 56), np.uint8)
    wide[:, 14:42] = 200  # what is left of it
    for name, pixels in (("b.png", wide), ("a.PNG", np.full((28, 28), 7, np.uint8))):
        Image.fromarray(pixels).save(tmp_path / home / name, format="PNG")
    actual = load_unlabeled(settings("transfer.local.train=[pictures]", name="own"), tmp_path)
    assert actual.images.pixels.shape == (2, 1, 28, 28) and set(actual.images.labels) == {-1}
    assert set(actual.images.pixels[0].ravel()) == {7} and set(actual.images.pixels[1].ravel()) == {200}
    assert [file.path for file in actual.files] == ["pictures"]


def test_load_unlabeled_refuses_folders(tmp_path):
    pictures = settings("transfer.local.train=[pictures]", name="own")
    folder = tmp_path / "pictures"
    for change in (lambda: None, folder.mkdir, lambda: (folder / "notes.txt").write_text("x")):
        change()
        with refuses():
            load_unlabeled(pictures, tmp_path)


def test_with_transfer_sets_transfer_set_of_image_parties():
    def numbered(count, first):
        pixels = np.arange(first, first + count, dtype=np.float32).reshape(-1, 1, 1, 1)
        return Images(pixels, np.arange(count) % 4)

    task = ImageTask("demo", list("abcd"), None, numbered(200, 0), numbered(60, 1000), [0.0], [1.0], "local")
    other = UnlabeledImages("more", replace(numbered(50, 5000), labels=np.full(50, -1)))
    both = with_transfer(task, other)
    shares = PartyShares(server=0.2, transfer=None, valid=0.1)
    parties = image_parties(both, Iid("iid", 4), shares, 0).datasets
    splits = ("train", "valid")
    pixels = {name: [own.splits[split].pixels.ravel() for split in splits] for name, own in parties.items()}
    rows = {name: np.concatenate(parts) for name, parts in pixels.items()}
    assert sorted(rows.pop("transfer")) == list(range(5000, 5050))
    assert sorted(np.concatenate(list(rows.values()))) == list(range(200)) and len(rows["server"]) == 40
    assert set(parties["transfer"].splits["train"].labels) == {-1} and tuple(parties["transfer"].splits) == splits
    assert len(divide_images(both, shares, 0)[2]) == 160
    assert both.digest != task.digest != replace(both, transfer=other.images.take(np.arange(49))).digest
    assert "transfer=more: 50 images of another data set are the transfer set" in both.notes
