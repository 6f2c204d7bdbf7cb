"""Folder of example plug-ins, and overrides of the smallest runs."""

from pathlib import Path

EXAMPLES = Path(__file__).parent / "plugins"

#: The smallest KNOT run: generated text, a narrow model, one epoch per stage. Seconds on one core.
TINY = [
    "task.max_examples=60", "model.hidden=16", "model.layers=1", "model.intermediate=32", "model.vocab_size=600",
    "training.local.epochs=1", "training.pretrain.epochs=1", "training.distill.epochs=2",
    "training.distill.batch_size=16", "method.bias.texts=20", "method.bias.tokens=20", "hardware.num_workers=1",
]  # fmt: skip

#: The smallest federated run: real digits, six clients, a narrow model. Under a second.
TINY_IMAGES = [
    "task=femnist", "task.max_examples=300", "task.shape=[1,8,8]", "partition.embedded_clients=6",
    "partition.alpha=5.0", "model.hidden=[16]", "training.rounds=3", "training.local_epochs=2",
    "training.clients_per_round=3", "training.batch_size=8", "training.lr=0.01", "hardware.num_workers=1",
]  # fmt: skip

#: The smallest federated run of a text model: five data sets are five clients.
TINY_TEXTS = [
    "task=erc", "task.context=0", "training=small", "partition=natural", "task.max_examples=60", "model.hidden=16",
    "model.layers=1", "model.intermediate=32", "model.vocab_size=600", "training.rounds=2", "hardware.num_workers=1",
]  # fmt: skip

#: The smallest distillation of images: real digits, three clients, a server and a transfer set.
TINY_PARTIES = [
    "task=femnist", "method=sinkhorn_e", "training=small", "partition=dirichlet", "task.max_examples=400",
    "task.shape=[1,8,8]", "model.hidden=[16]", "partition.num_clients=3", "partition.alpha=1.0", "partition.floor=0",
    "method.bias.images=60", "training.local.epochs=2", "training.pretrain.epochs=2", "training.distill.epochs=3",
    "training.distill.batch_size=8", "training.local.lr=0.02", "training.pretrain.lr=0.02", "training.distill.lr=0.01",
    "hardware.num_workers=1",
]  # fmt: skip

#: The smallest distillation of a teacher: real digits, a teacher of three small convolutions.
TINY_TAUGHT = [
    "task=mnist", "method=kd", "model=cnn_4", "method.teacher=cnn_8", "task.max_examples=150", "task.shape=[1,8,8]",
    "training=small", "training.local.epochs=1", "training.distill.epochs=2", "training.distill.batch_size=16",
    "hardware.num_workers=1",
]  # fmt: skip

#: FedDF by KNOT's Sinkhorn-E: every client is a teacher.
FEDDF_SINKHORN_E = [
    "method=feddf", "method.server_distillation.ensemble=each", "method.server_distillation.weighting=E",
    "base/loss@method.server_distillation.loss=sinkhorn",
]  # fmt: skip

#: FedDF by softened outputs and by relations between examples.
FEDDF_RKD = [
    "method=feddf", "+base/term@method.server_distillation.terms.kd=kd",
    "method.server_distillation.terms.kd.weight=1.0", "+base/term@method.server_distillation.terms.rkd=rkd",
]  # fmt: skip

#: Ten clients in five planted groups of real digits, which clustered FedAvg finds.
CLUSTERED_IMAGES = [
    "task=mnist_fedwad", "training=fedwad", "task.shape=[1,8,8]", "task.max_examples=400", "partition.num_clients=10",
    "model.hidden=[12]", "model.output=logits", "training.rounds=3", "training.local_epochs=2", "training.lr=0.05",
    "hardware.num_workers=1", "training.small_clients=allow",
]  # fmt: skip

#: Clipping without noise: there is nothing to account for, and the extra is not needed.
CLIPPED = [*TINY_IMAGES, "privacy=user_level", "method.aggregation=uniform", "privacy.noise_multiplier=0",
           "privacy.clip_norm=0.2"]  # fmt: skip

#: Clusters of clients, of any federated method.
CLUSTERING = ["+base/clustering@method.clustering=otdd", "method.aggregation=uniform"]

#: FedWaD's own kinds of run. Scikit-learn's digits at 8 x 8 on six clients, their coresets, and a distance.
DIGITS = ["task=mnist", "task.max_examples=300", "task.shape=[1,8,8]", "partition=shards", "partition.num_clients=6"]
CORESET = [
    *DIGITS, "method=coreset", "partition.shards_per_client=8", "method.epochs=12", "method.points=5", "method.lr=0.2",
    "method.participants=3", "method.samples=20", "method.fedwad.iterations=3", "method.fedwad.support=5",
]  # fmt: skip
KNN = [
    *DIGITS, "method=coreset_knn", "partition.shards_per_client=2", "method.epochs=15", "method.points=4",
    "method.lr=0.5", "method.fedwad.iterations=3", "method.encoder.sizes=[32,8]", "method.encoder.epochs=40",
    "method.encoder.batch_size=30", "method.encoder.lr=0.01",
]  # fmt: skip
DISTANCE = ["task=gaussians", "task.samples=24", "method.fedwad.support=4", "method.fedwad.iterations=3"]
#: Four sets of 30 digits, S=5, K=3.
SETS = [
    "task=image_sets", "task.shape=[1,8,8]", "method.otdd.samples=30", "method.otdd.fedwad.support=5",
    "method.otdd.fedwad.iterations=3", "hardware.num_workers=1",
]  # fmt: skip


def replaced(small: list[str], *overrides: str) -> list[str]:
    """``small`` with ``overrides``, each key once: a key that is given twice is said on the command line."""
    given = {override.split("=", 1)[0] for override in overrides}
    return [*(one for one in small if one.split("=", 1)[0] not in given), *overrides]
