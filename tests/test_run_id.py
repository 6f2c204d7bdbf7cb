"""The run id, setting by setting: every one that can change a number changes it, and no other does."""

from __future__ import annotations

from fnmatch import fnmatch

import pytest

from knot_runner.composing.commands import compose_jobs
from knot_runner.config.settings import FederatedSettings, run_id
from tests.changed_settings import leaves, other, replaced
from tests.tiny import FEDDF_SINKHORN_E

#: Where and how a run is carried out and shown, for every kind of run.
#: (``task.optional``: which sets were there is in the digest of the data, by which a reuse is checked)
NEVER = ["fail_fast", "tracker.*", "paths.*", "report", "sweep", "task.optional"]
HARDWARE = ["hardware.name", "hardware.device", "hardware.devices", "hardware.threads", "hardware.workers"]
UNTRAINED = [*HARDWARE, "hardware.engine", "hardware.precision", "hardware.stack"]
OTHER_SOURCES = ["task.local.*", "task.hub.*"]
#: T = 1 has no rate to control; an engine that is not stacked (and not chosen) has no width.
PLAIN = [*HARDWARE, *OTHER_SOURCES, "hardware.stack", "method.lr_control"]
FEDWAD = "method.clustering.otdd.fedwad.*"
#: Images have pixels, or an encoder's code.
CLUSTERED = [*PLAIN, "method.clustering.otdd.features.*"]
WITHOUT_MODEL = [*UNTRAINED, *OTHER_SOURCES, "model.*", "training.*"]
#: The rate decays after milestones, of which there are none.
NO_DECAY = ["training.*.decay"]
#: Of stages on images, and of clients that train in rounds on examples that have no transfer set of their own.
TRANSFER = "partition.transfer"
OF_GEOMETRY = ["task.superclasses*", "task.sets.*.superclasses*"]
OF_RANDOM_IMAGES = ["method.bias.images", "method.bias.noise"]
OF_RANDOM_TEXTS = ["method.bias.texts", "method.bias.tokens"]
#: Generated texts of clients that train in rounds, and what of them is not in use.
TEXTS_OF_CLIENTS = ["task=erc", "training=texts", "partition=natural", "hardware.engine=lean"]
UNREAD_TEXTS = [
    "task.optional*", "task.datasets.*.hub*", "task.datasets.*.local*", "model.kind", "model.hub_id", "model.revision",
]  # fmt: skip
ROUNDS_OF_TEXTS = ["hardware.stack", "method.lr_control"]
#: Without held-out transfer examples nothing is checked.
OF_VALID = ["method.distil.check", "method.distil.patience"]
FEATURES = "method.clustering.otdd.features"
#: Overrides -> the settings that do not change its numbers, written down by hand.
RUNS: dict[str, tuple[list[str], list[str]]] = {
    "texts from files": (
        ["task=erc", "method=sinkhorn_e", "task.source=local"],
        [
            *UNTRAINED,
            "task.optional*",
            "task.datasets.*.hub*",
            "task.datasets.*.embedded*",
            "task.datasets.*.columns.clients.*",
            "model.kind",
            "model.hub_id",
            "model.revision",
            *NO_DECAY,
        ],
    ),
    "generated texts": (["task=sa", "method=entropy_a"], [*UNTRAINED, *UNREAD_TEXTS, *NO_DECAY]),
    "a student of texts alone": (
        ["task=sa", "method=student_alone"],
        [*UNTRAINED, *UNREAD_TEXTS, "training.distil.decay", "training.pretrain.*", "training.local.*"]
        + ["method.auto_ratio", "method.valid", "method.teacher"],
    ),
    "a vocabulary alone from the hub": (
        ["task=sa", "method=entropy_a", "model.vocab=hub"],
        [
            *UNTRAINED,
            "task.optional*",
            "task.datasets.*.hub*",
            "task.datasets.*.local*",
            "model.kind",
            "model.vocab_size",
            *NO_DECAY,
        ],
    ),
    "texts of clients": ([*TEXTS_OF_CLIENTS, "method=fedavg"], [*HARDWARE, *ROUNDS_OF_TEXTS, *UNREAD_TEXTS]),
    "texts of speakers": (
        ["task=erc", "method=fedavg", "training=texts", "partition=natural", "task.source=local"]
        + ["partition.by=speaker", "hardware.engine=lean"],
        [
            *HARDWARE,
            "hardware.stack",
            "method.lr_control",
            "task.optional*",
            "task.datasets.*.hub*",
            "task.datasets.*.embedded*",
            "model.kind",
            "model.hub_id",
            "model.revision",
        ],
    ),
    "a vocabulary and weights from the hub": (
        ["task=sa", "method=entropy_a", "model.vocab=hub", "model.weights=hub"],
        [
            *UNTRAINED,
            "task.optional*",
            "task.datasets.*.hub*",
            "task.datasets.*.local*",
            "model.kind",
            "model.vocab_size",
            *NO_DECAY,
        ],
    ),
    "distilled images": (
        ["task=cifar10", "method=sinkhorn_e", "partition=dirichlet_nofloor"],
        [*UNTRAINED, *OTHER_SOURCES, *OF_RANDOM_TEXTS, *NO_DECAY],
    ),
    "distilled images, superclasses": (
        ["task=cifar10", "method=sinkhorn_e", "task.geometry=superclasses"],
        [*UNTRAINED, *OTHER_SOURCES, *OF_RANDOM_TEXTS, *NO_DECAY],
    ),
    "teachers and a student of images": (
        ["task=cifar10", "method=kd", "model=cnn_mcmahan", "training.distil.milestones=[3]"],
        [*UNTRAINED, *OTHER_SOURCES, "training.local.decay", "training.pretrain.*"]
        + ["method.auto_ratio", "method.teacher"],
    ),
    "averaging": (["task=femnist", "method=fedavg"], PLAIN),
    "a fleet in rounds": (["task=femnist", "method=fedavg", "fleet=phones"], [*PLAIN, "fleet.staleness_exponent"]),
    "a fleet without rounds": (["task=femnist", "method=fedavg", "fleet=phones_async"], PLAIN),
    "a server that distils": (
        ["task=femnist", *FEDDF_SINKHORN_E],
        [*PLAIN, "method.distil.bias.texts", "method.distil.bias.tokens", *OF_VALID],
    ),
    "a server that distils texts": (
        [*TEXTS_OF_CLIENTS, "method=feddf"],
        [
            *UNREAD_TEXTS,
            *HARDWARE,
            *ROUNDS_OF_TEXTS,
            "method.distil.bias.images",
            "method.distil.bias.noise",
            *OF_VALID,
        ],
    ),
    "averaging, images from files": (
        ["task=femnist", "method=fedavg", "task.source=local"],
        [*HARDWARE, "task.hub.*", "hardware.stack", "method.lr_control"],
    ),
    "chilled": (
        ["task=femnist", "method=fedavg_chill", "method.temperature=0.5"],
        [*HARDWARE, *OTHER_SOURCES, "hardware.stack"],
    ),
    "chilled by a schedule alone": (
        ["task=femnist", "method=fedavg_chill", "method.temperature=1", "method.hard_temperature=2.0"],
        [*HARDWARE, *OTHER_SOURCES, "hardware.stack"],
    ),
    "stacked": (
        ["task=femnist", "method=fedavg", "hardware.engine=stacked"],
        [*HARDWARE, *OTHER_SOURCES, "method.lr_control"],
    ),
    "engine chosen by the hardware": (
        ["task=femnist", "method=fedavg", "hardware.engine=auto"],
        [*HARDWARE, *OTHER_SOURCES, "method.lr_control"],
    ),
    "by affinity": (["task=mnist_fedwad", "method=clustered_fedrep"], CLUSTERED),
    "by a sparse graph": (
        ["task=mnist_fedwad", "method=clustered_fedavg", "method.clustering.graph=sparse3"],
        [*CLUSTERED, "method.clustering.scale"],
    ),
    "by the exact distance": (
        ["task=mnist_fedwad", "method=clustered_fedavg", "method.clustering.otdd.solver=exact"],
        [*CLUSTERED, FEDWAD, "method.clustering.otdd.precision"],
    ),
    "one cluster of all": (
        ["task=mnist_fedwad", "method=clustered_fedavg", "method.clustering.graph=none"],
        [*PLAIN, "method.clustering.otdd.*", "method.clustering.clusters", "method.clustering.scale"],
    ),
    "distances of clients": (["task=mnist", "method=dataset_distance"], [*WITHOUT_MODEL, "method.otdd.features.*"]),
    "distances of data sets": (
        ["task=image_sets", "method=dataset_distance"],
        [*UNTRAINED, "task.optional*", "task.sets.*.local.*", "task.sets.*.hub.*", "method.otdd.features.*"],
    ),
    "a distance": (["task=gaussians"], UNTRAINED),
    "a distance, exact": (["task=gaussians", "method.fedwad.mode=exact"], [*UNTRAINED, "method.fedwad.support"]),
    "a coreset": (["task=mnist", "method=coreset"], [*WITHOUT_MODEL, "method.features.*"]),
    "a coreset, exact": (
        ["task=mnist", "method=coreset", "method.distance=exact"],
        [*WITHOUT_MODEL, "method.features.*", "method.fedwad.*"],
    ),
    "neighbours": (["task=mnist", "method=coreset_knn"], [*WITHOUT_MODEL, "method.features.*"]),
    "texts in clusters, by words": (
        [*TEXTS_OF_CLIENTS, "method=clustered_fedavg"],
        [*UNREAD_TEXTS, *HARDWARE, *ROUNDS_OF_TEXTS, "method.clustering.otdd.encoder", f"{FEATURES}.encoder"],
    ),
    "texts in clusters, by an encoder": (
        [*TEXTS_OF_CLIENTS, "method=clustered_fedavg", f"{FEATURES}.kind=cls"],
        [
            *UNREAD_TEXTS,
            *HARDWARE,
            *ROUNDS_OF_TEXTS,
            "method.clustering.otdd.encoder",
            f"{FEATURES}.components",
            f"{FEATURES}.words",
        ],
    ),
    "texts in one cluster": (
        [*TEXTS_OF_CLIENTS, "method=clustered_fedavg", "method.clustering.graph=none"],
        [
            *UNREAD_TEXTS,
            *HARDWARE,
            *ROUNDS_OF_TEXTS,
            "method.clustering.otdd.*",
            "method.clustering.clusters",
            "method.clustering.scale",
        ],
    ),
    "distances of texts, by words": (
        ["task=sa", "method=dataset_distance"],
        [*UNREAD_TEXTS, *UNTRAINED, "model.*", "training.*", "method.otdd.encoder", "method.otdd.features.encoder"],
    ),
    "distances of texts, by the hub's encoder": (
        ["task=sa", "method=dataset_distance", "method.otdd.features.kind=cls", "method.otdd.features.encoder=hub"],
        [
            *UNREAD_TEXTS[:-2],
            *UNTRAINED,
            "training.*",
            "method.otdd.encoder",
            "method.otdd.features.components",
            "method.otdd.features.words",
        ],
    ),
    "neighbours of texts": (
        ["task=sa", "method=coreset_knn", "partition=natural"],
        [
            *UNREAD_TEXTS,
            *UNTRAINED,
            "model.*",
            "training.*",
            "method.encoder.*",
            "method.encoder_share",
            "method.features.encoder",
        ],
    ),
    "a temperature probe": (
        ["task=femnist", "method=temperature_probe"],
        [*HARDWARE, *OTHER_SOURCES, "hardware.stack"],
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_what_changes_numbers_changes_the_run_id_and_nothing_else_does(name: str) -> None:
    overrides, unused = RUNS[name]
    (job,) = compose_jobs(overrides, None)
    in_rounds = isinstance(job.method, FederatedSettings)
    later = [] if in_rounds else ["partition.unseen", "partition.alter"]
    later += [] if "distilled images" in name else ["partition.server", *OF_RANDOM_IMAGES]
    later += [] if in_rounds or "distilled images" in name else ["partition.valid"]
    held_out = in_rounds and job.settings.on_images
    later += [] if held_out or "distilled images" in name else [TRANSFER]
    geometry = [] if "superclasses" in name else OF_GEOMETRY
    names = [key for key, _ in leaves(job.config)]
    for pattern in unused:
        assert any(fnmatch(key, pattern) for key in names) or pattern.startswith(("task.", "model.")), pattern
    wrong = []
    for key, value in leaves(job.config):
        if key in ("task.kind", "method.clustering"):  # another kind of run altogether, or none
            continue
        counts = run_id(replaced(job.config, key, other(value))) != run_id(job.config)
        if counts == any(fnmatch(key, pattern) for pattern in [*NEVER, *later, *geometry, *unused]):
            wrong.append(f"{key} {'changes' if counts else 'does not change'} the run id")
    assert not wrong


def test_a_rate_that_is_written_as_a_whole_number_names_the_run_of_the_same_rate() -> None:
    for words, spelt in (
        (["task=femnist", "method=fedavg"], ["training.lr=1", "training.lr=1.0"]),
        (["task=sa", "method=entropy_a"], ["training.distil.lr=1", "training.distil.lr=1.0"]),
    ):
        jobs = [compose_jobs([*words, one], None)[0] for one in spelt]
        assert jobs[0].run_id == jobs[1].run_id and jobs[0].config_yaml == jobs[1].config_yaml
    one_client, all_clients = (
        compose_jobs(["task=femnist", "method=fedavg", f"training.participants={count}"], None)[0] for count in (1, 1.0)
    )
    assert one_client.run_id != all_clients.run_id  # a number of clients, and a share of them
