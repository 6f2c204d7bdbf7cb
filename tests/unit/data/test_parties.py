"""Images dealt to the parties of a distillation."""

import dataclasses

import numpy as np
import pytest

from knot_runner.config.settings.partition import Dirichlet, Iid, PartyShares, party_shares
from knot_runner.config.strict import build
from knot_runner.data.images.partition import make_partition
from knot_runner.data.parties import clients_images, image_parties
from knot_runner.data.tasks import Images, ImageTask
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


def test_image_parties_hide_only_transfer_labels():
    for data in parties().datasets.values():
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
    left = [numbers(clients_images(task(), SHARES, seed).train) for seed in (0, 1)]
    assert left[0] != left[1]
    other = dataclasses.replace(task(), transfer=task().train)  # the same for both seeds, but for what is held out
    shares = PartyShares(server=0.2, transfer=None, valid=0.1)
    made = [image_parties(other, Iid("iid", 4), shares, seed).datasets["transfer"] for seed in (0, 1)]
    assert numbers(made[0].splits["valid"]) != numbers(made[1].splits["valid"])


def test_image_parties_partition_what_is_left():
    uneven, left = Dirichlet("dirichlet", 3, 0.5, 0), clients_images(task(), SHARES, 5)
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


@pytest.mark.parametrize("options", [
    {"train": 2, "classes": 2}, {"train": 30, "partition": Iid("iid", 15)}, {"train": 40, "partition": Iid("iid", 30)},
])  # fmt: skip
def test_image_parties_refuse_too_few_images(options):
    with refuses():
        parties(**options)


def test_party_shares_leave_images_to_clients():
    with refuses():
        build(PartyShares, {"server": 0.6, "transfer": 0.5}, "partition")
    stages = dict.fromkeys(("local", "pretrain", "distill"), {"select": "last"})
    given = {"partition": {"server": 0.6, "valid": None}, "method": {"algorithm": "knot"}, "training": stages}
    assert party_shares(given) == {"server": 0.6, "transfer": 0.2, "valid": None}
    best = given | {"training": stages | {"local": {"select": "best"}}}
    assert party_shares(best) == {"server": 0.6, "transfer": 0.2, "valid": 0.1}
    assert party_shares(given | {"transfer": {"name": "usps"}})["transfer"] is None
