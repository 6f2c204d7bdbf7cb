"""Images dealt to the parties of a distillation."""

import numpy as np
import pytest

from knot_runner.config.settings import Dirichlet, Iid, PartyShares
from knot_runner.config.settings.partition import party_shares
from knot_runner.config.strict import build
from knot_runner.data.images.partition import make_partition
from knot_runner.data.parties import _train_and_valid, clients_images, image_parties
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


def test_no_training_image_is_anywhere_twice_and_none_is_lost():
    made = parties()
    parts = [numbers(data.splits[split]) for data in made.datasets.values() for split in ("train", "valid")]
    assert sorted(sum(parts, [])) == list(range(200))


def test_sizes_and_roles_are_the_shares():
    made = parties()
    assert {name: data.role for name, data in made.datasets.items()} == {
        **{f"client {k}": "local" for k in range(4)}, "server": "global", "transfer": "transfer",
    }  # fmt: skip
    sizes = {name: [len(part) for part in data.splits.values()] for name, data in made.datasets.items()}
    assert sizes["server"] == [36, 4, 60] and sizes["transfer"] == [54, 6]
    assert [sum(sizes[f"client {k}"][:2]) for k in range(4)] == [25] * 4


def test_classes_are_shared_alike():
    made = parties()
    for name in ("server", "transfer"):
        rows = np.concatenate([numbers(made.datasets[name].splits[split]) for split in ("train", "valid")])
        assert len(set(np.bincount(rows % 4))) == 1


def test_the_transfer_set_has_no_labels_and_no_test():
    public = parties().datasets["transfer"].splits
    assert list(public) == ["train", "valid"] and set(public["train"].labels) == {-1}


def test_labels_stay_with_their_images():
    for data in parties().datasets.values():
        if data.role != "transfer":
            for part in data.splits.values():
                assert part.labels.tolist() == [number % 1000 % 4 for number in numbers(part)]


def test_all_test_images_are_the_servers_and_the_clients_have_them_in_parts():
    made = parties()
    assert numbers(made.datasets["server"].splits["test"]) == list(range(1000, 1060))
    clients = sum((numbers(made.datasets[f"client {k}"].splits["test"]) for k in range(4)), [])
    assert sorted(clients) == list(range(1000, 1060))


def test_the_seed_decides_who_has_what():
    def dealt(seed):
        made = parties(seed)
        return {name: numbers(data.splits["train"]) for name, data in made.datasets.items()}

    one, other = dealt(0), dealt(1)
    assert one == dealt(0)
    assert all(one[name] != other[name] for name in one)
    left = [numbers(clients_images(task(), SHARES, seed).train) for seed in (0, 1)]
    assert left[0] != left[1]
    chosen = [numbers(_train_and_valid("server", task().train, 0.1, seed)["valid"]) for seed in (0, 1)]
    assert chosen[0] != chosen[1]


def test_clients_follow_the_partition():
    made = parties(partition=Dirichlet("dirichlet", 3, 0.1, 0))
    counts = [np.bincount(made.datasets[f"client {k}"].splits["train"].labels, minlength=4) for k in range(3)]
    assert max(count.max() / count.sum() for count in counts) > 0.5


def test_clients_are_those_of_the_partition_of_what_is_left_by_the_runs_seed():
    left = clients_images(task(), SHARES, 5)
    dealt = make_partition(Iid("iid", 4), left, 5)
    for name, rows in zip(dealt.names, dealt.train, strict=True):
        splits = parties(seed=5).datasets[name].splits
        assert sorted(numbers(splits["train"]) + numbers(splits["valid"])) == sorted(numbers(left.train.take(rows)))


def test_without_coordinates_labels_are_one_hot_and_that_is_said():
    made = parties()
    assert made.labels.coordinates == np.eye(4).tolist()
    said = "demo has no coordinates of classes: every two are sqrt(2) apart (task.geometry=onehot)"
    assert made.notes == ["a note", said]
    points = [[0.0], [1.0], [2.0], [3.0]]
    assert parties(coordinates=points).labels.coordinates == points


@pytest.mark.parametrize("options", [
    {"train": 2, "classes": 2}, {"train": 30, "partition": Iid("iid", 15)}, {"train": 40, "partition": Iid("iid", 30)},
])  # fmt: skip
def test_too_few_images_are_named(options):
    with refuses():
        parties(**options)


def test_shares_leave_something():
    with refuses():
        build(PartyShares, {"server": 0.6, "transfer": 0.5}, "partition")
    given = {"partition": {"server": 0.6, "valid": None}}
    assert party_shares(given) == {"server": 0.6, "transfer": 0.2, "valid": 0.1}
    assert party_shares(given | {"transfer": {"name": "usps"}})["transfer"] is None
