"""Every draw depends on the run's seed and on what it is keyed by, and on nothing else."""

import dataclasses

import numpy as np
import pytest
import torch

from knot_runner import compose
from knot_runner.config.settings.methods.federated import Stragglers
from knot_runner.config.settings.networks import MlpSettings
from knot_runner.config.settings.partition import PARTITION_SETTINGS
from knot_runner.data.images.partition import make_partition
from knot_runner.data.splits import cut_splits, hold_out, limit
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining, Phase, Recipe
from knot_runner.engine.federated.local import epochs
from knot_runner.engine.seeds import generator, keyed, numpy_generator, seeded
from knot_runner.methods.federated.chilling import stragglers
from knot_runner.models.network import Network
from knot_runner.transport.otdd.first_iteration import draw_times, first_points
from tests.of_papers import of_papers
from tests.unit.data.images.deals import balanced, images
from tests.unit.methods.federated.worlds import make_world, settings

WORLD = make_world([5])
LABELS = np.repeat(np.arange(4), 25)
OWNED = images(LABELS, users=np.tile(np.arange(10), 10))
POPULATION = WORLD.federation
SLOW = settings(stragglers=Stragglers(share=0.4, temperature=0.5, epochs=1))
RECIPE = Recipe(phases=(Phase(2),), batch_size=4, drop_last=True, lr=0.1)


def seeded_as(seed):
    return dataclasses.replace(POPULATION, seed=seed)


def local(seed, round=1, client=2):
    request = LocalTraining(
        client=client, seed=seed, round=round, start=ClientModel(torch.zeros(1), torch.zeros(0)),
        rows=torch.arange(40), test_rows=torch.arange(4), recipe=RECIPE,
    )  # fmt: skip
    passes = list(epochs(request, "crop_flip"))
    return [part.tolist() for one in passes for part in (one.order, one.crops[:, :2], one.crops[:, 2].bool())]


def partition(kind, **chosen):
    values = {"kind": kind, "num_clients": 5, "alpha": 0.5, "floor": 0, "shards_per_client": 2} | chosen
    cls = PARTITION_SETTINGS[kind]
    options = cls(**{field.name: values[field.name] for field in dataclasses.fields(cls)})
    return lambda seed: [rows.tolist() for rows in make_partition(options, balanced(20, 5), seed).train]


def otdd():
    (job,) = compose(["task=mnist", "method=dataset_distance", "method.otdd.fedwad.t=random"])
    return job.method.otdd


DRAWS = {
    "participants": lambda seed: [seeded_as(seed).drawn(round) for round in range(8)],
    "stragglers": lambda seed: [sorted(stragglers(SLOW, seeded_as(seed + 10 * i))) for i in range(4)],
    "batches, crops and flips": local,
    "first weights": lambda seed: flat.initial(Network(MlpSettings("mlp", "t", [5], "logits"), (1, 2, 2), 3), seed)[0],
    "task.max_examples": lambda seed: limit(images(LABELS, users=np.arange(100)), 20, seed).users,
    "valid and test parts": lambda seed: cut_splits(LABELS, 0.3, seed),
    "unstratified parts": lambda seed: cut_splits(np.arange(40) // 2, 0.1, seed),
    "test images of each writer": lambda seed: (
        hold_out(OWNED, 0.2, seed)[1].users * 100 + hold_out(OWNED, 0.2, seed)[1].labels
    ),
    "iid": partition("iid"),
    "dirichlet": partition("dirichlet"),
    "dirichlet_clients": partition("dirichlet_clients"),
    "shards": partition("shards"),
    "pairs": partition("pairs", groups=[[0, 1], [2, 3]]),
    "draws of a coreset": lambda seed: numpy_generator(seed, "coreset", 3).normal(size=4),
    "first points of a dataset_distance": lambda seed: first_points(2, otdd(), seed),
    "times of a dataset_distance": lambda seed: draw_times(0, 1, otdd().fedwad, seed),
}


def plain(value):
    if isinstance(value, np.ndarray | torch.Tensor):
        return value.tolist()
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("name", of_papers(DRAWS))
def test_draws_repeat_for_same_seed_only(name):
    draw = DRAWS[name]
    assert plain(draw(3)) == plain(draw(3))
    assert plain(draw(3)) != plain(draw(4))


def test_names_are_told_apart():
    """``(1, 12)`` is not ``(11, 2)``, and what was drawn before does not matter."""
    assert keyed(1, 12) != keyed(11, 2) and keyed(1, "a") != keyed(1, "b")
    assert 0 <= keyed(1, "a") < 2**63
    with seeded(3, "weights"):
        first = torch.rand(3)
    torch.rand(5)
    with seeded(3, "weights"):
        assert torch.equal(torch.rand(3), first)
    assert not torch.equal(torch.rand(3, generator=generator(3, "a")), torch.rand(3, generator=generator(3, "b")))


def test_seeded_restores_the_global_generator():
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    with seeded(9, "weights"):
        torch.rand(7)
    assert torch.equal(torch.rand(2), expected)
