"""Small requests for students (forty gray images of 6x6 pixels, three classes) and textbook loops."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from knot_runner.config.settings.methods.distill import SCHEDULE_SETTINGS, OfflineSchedule
from knot_runner.config.settings.networks import CnnSettings, ConvSettings, MlpSettings
from knot_runner.engine.commit import Checkpoint
from knot_runner.engine.loop import Resources
from knot_runner.engine.requests import Ref, StoredPart
from knot_runner.engine.seeds import generator, keyed
from knot_runner.engine.store import Store
from knot_runner.methods.distill.students import TrainStudents
from knot_runner.models.network import Network, build_network
from tests.changed_settings import built, stage, terms_of
from tests.disk import Killed

SHAPE, CLASSES = (1, 6, 6), 3
MLP = Network(MlpSettings("mlp", "mlp", [8], "logits"), SHAPE, CLASSES)
CNN = Network(CnnSettings("cnn", "cnn", [ConvSettings(4, 3, 1), ConvSettings(6, 3, 1)], [], "logits"), SHAPE, CLASSES)
WIDE = Network(CnnSettings("cnn", "wide", [ConvSettings(6, 3, 1), ConvSettings(8, 3, 1)], [], "logits"), SHAPE, CLASSES)
CE = {"weight": 1.0}


def make_place(folder: Path) -> Resources:
    return Resources(Store(folder / "artifacts"), torch.device("cpu"), None)


def put_images(place: Resources, key: str, count: int, seed: int, unlabeled: int = 0) -> Ref:
    """Images of which the first ``unlabeled`` have no labels."""
    draw = torch.Generator().manual_seed(seed)
    pixels = torch.rand(count, *SHAPE, generator=draw)
    labels = torch.randint(CLASSES, (count,), generator=draw)
    labels[:unlabeled] = -1
    stats = {"mean": torch.full((1,), 0.5, dtype=torch.float64), "std": torch.full((1,), 0.3, dtype=torch.float64)}
    place.store.put("images", key, {"pixels": pixels, "labels": labels, **stats}, {})
    return ("images", key)


def put_teacher(place: Resources, network: Network, seed: int) -> tuple[Network, Ref]:
    """A network with weights that are large enough to be sure of something."""
    torch.manual_seed(seed)
    model = build_network(network)
    weights = {name: 3 * tensor for name, tensor in model.state_dict().items()}
    place.store.put("local", f"teacher{seed}", weights, {})
    return network, ("local", f"teacher{seed}")


def students(place: Resources, terms: dict, teachers: tuple = (), network: Network = MLP, **changes) -> TrainStudents:
    """The request; two epochs of batches of 16 out of 40 by AdamW."""
    made = {
        "stage": "distill", "party": "student", "network": network, "terms": terms_of(terms),
        "teachers": tuple(teachers),
        "train": StoredPart(put_images(place, "train", 40, 1, changes.pop("unlabeled", 0))),
        "valid": StoredPart(put_images(place, "valid", 20, 2)), "schedule": OfflineSchedule("offline"),
        "points": [[0.0], [1.0], [2.0]], "auto_ratio": 1.0, "seed": 5,
        "training": stage(3, 16, 0.01, 0.1, select="last"),
    }  # fmt: skip
    if isinstance(changes.get("schedule"), dict):
        kind = changes["schedule"]["kind"]
        changes["schedule"] = built(SCHEDULE_SETTINGS[kind], f"base/schedule/{kind}.yaml", **changes["schedule"])
    return TrainStudents(**{**made, **changes})


def silent(done: int, total: int, text: str) -> None:
    """Report nothing."""


def killed_and_resumed(request, place: Resources, epoch: int) -> tuple[dict, dict]:
    """Return tensors and facts of ``request`` (three epochs), killed in ``epoch`` and resumed."""

    def kill(done, total, text):
        if done == total * epoch // 3 - 1:
            raise Killed

    work = place.store.root.parent / f"killed {epoch}"
    with pytest.raises(Killed):
        request.run(place, work, kill)
    assert Checkpoint(work).load().step == (epoch - 1 or -1)
    return request.run(place, work, silent)


def assert_same_bits(actual: dict, wanted: dict) -> None:
    assert set(actual) == set(wanted)
    assert all(torch.equal(actual[name], tensor) for name, tensor in wanted.items())


KD = {"weight": 0.7, "temperature": 2.0}


def trained(request, place, folder):
    return request.run(place, place.store.root.parent / folder, silent)


def pixels(place, key):
    tensors = place.store.get("images", key).tensors()
    return ((tensors["pixels"].double() - 0.5) / 0.3).float(), tensors["labels"]


def softened(z, v, tau):
    """tau^2 KL(v || z) of softened outputs, mean over the batch."""
    q = torch.softmax(v / tau, 1)
    return tau**2 * (q * (q.log() - torch.log_softmax(z / tau, 1))).sum(1).mean()


def orders(request, count=40):
    """The batches of every epoch."""
    for epoch in range(1, request.training.epochs + 1):
        order = torch.randperm(count, generator=generator(request.seed, "order", request.stage, "student", epoch))
        yield epoch, order.split(request.training.batch_size)


def started(name, network=MLP, seed=5):
    torch.manual_seed(keyed(seed, "init", name))
    return build_network(network)


def frozen_model(place, teacher):
    """A stored teacher, as (network, name) of :func:`put_teacher`."""
    network, weights = teacher
    model = build_network(network).eval()
    model.load_state_dict(place.store.get(*weights).tensors())
    return model.requires_grad_(False)


def taught_by(*teachers, share=lambda epoch: 1.0, labels=1.0):
    """The loss of students that learn from labels and, by ``share(epoch)`` of it, each from its own teacher."""

    def loss(number, model, x, y, epoch):
        with torch.no_grad():
            v = teachers[number](x)
        z = model(x)
        return labels * F.cross_entropy(z[y >= 0], y[y >= 0]) + 0.7 * share(epoch) * softened(z, v, 2.0)

    return loss


def plain(place, request, loss, models, after=lambda: None, epoch_end=lambda: None):
    """A textbook loop: ``loss(number, model, x, y, epoch)`` of each of the models, an optimizer each."""
    x, y = pixels(place, "train")
    settings = request.training
    sgd = {"momentum": settings.momentum} if settings.optimizer == "sgd" else {}
    kind = torch.optim.SGD if sgd else torch.optim.AdamW
    optimizers = [kind(one.parameters(), lr=settings.lr, weight_decay=settings.weight_decay, **sgd) for one in models]
    for epoch, batches in orders(request):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = settings.lr * 0.1 ** sum(epoch > end for end in settings.milestones)
        for rows in batches:
            values = [loss(number, model, x[rows], y[rows], epoch) for number, model in enumerate(models)]
            for optimizer, value in zip(optimizers, values, strict=True):
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
            after()
        epoch_end()


def assert_same(actual, model, prefix=""):
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(actual[prefix + name], tensor, rtol=1e-4, atol=2e-6)
