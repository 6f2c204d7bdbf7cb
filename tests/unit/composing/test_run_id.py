"""The run id, setting by setting: every one that can change a number changes it, and settings that are not read do not.
Of some kinds of run it also counts settings that are not read, which costs a run that nobody asks for, and no
number."""

from __future__ import annotations

from fnmatch import fnmatch

import pytest

from knot_runner import compose
from knot_runner.composing.job import job_of
from knot_runner.config.settings.run_id import run_id
from tests.changed_settings import leaves, other, replaced
from tests.of_papers import of_papers
from tests.tiny import FEDDF_SINKHORN_E

#: Where and how a run is carried out and shown, and labels of groups, for every kind of run.
NEVER = ["fail_fast", "tracker.*", "paths.*", "report", "sweep"]
NEVER += ["model.name", "training.name", "fleet.name", "privacy.name"]
HARDWARE = ["hardware.name", "hardware.device", "hardware.devices", "hardware.threads", "hardware.num_workers"]
UNTRAINED = [*HARDWARE, "hardware.engine", "hardware.precision", "hardware.stack"]
#: Of generated images, and of generated texts.
OTHER_SOURCES = ["task.local.*", "task.hub.*"]
OTHER_TEXTS = ["task.datasets.*.hub*", "task.datasets.*.local*"]
#: T = 1 has no rate to control; an engine that is not stacked (and not chosen) has no width.
CHILLED = [*HARDWARE, *OTHER_SOURCES, "hardware.stack"]
PLAIN = [*CHILLED, "method.lr_control"]
FEDWAD = "method.clustering.otdd.fedwad.*"
#: Generated texts of clients that train in rounds.
TEXTS_OF_CLIENTS = ["task=erc", "partition=natural", "hardware.engine=lean"]
#: Overrides -> the settings that do not change the id, written down by hand.
RUNS: dict[str, tuple[list[str], list[str]]] = {
    "texts from files": (["task=erc", "method=sinkhorn_e", "task.source=local"],
                         [*UNTRAINED, "task.datasets.*.hub*", "task.datasets.*.embedded*"]),
    "generated texts": (["task=sa", "method=entropy_a"], [*UNTRAINED, *OTHER_TEXTS]),
    "a student of texts alone": (["task=sa", "method=student_alone"], [*UNTRAINED, *OTHER_TEXTS, "method.teacher"]),
    "texts of clients": ([*TEXTS_OF_CLIENTS, "method=fedavg"],
                         [*HARDWARE, *OTHER_TEXTS, "hardware.stack", "method.lr_control", "partition.transfer"]),
    "distilled images": (["task=cifar10", "method=sinkhorn_e", "partition=dirichlet_nofloor"],
                         [*UNTRAINED, *OTHER_SOURCES]),
    "teachers and a student of images": (["task=cifar10", "method=kd", "model=cnn_mcmahan"],
                                         [*UNTRAINED, *OTHER_SOURCES, "method.teacher"]),
    "averaging": (["task=femnist", "method=fedavg"], PLAIN),
    "a fleet in rounds": (["task=femnist", "method=fedavg", "fleet=phones"], PLAIN),
    "a fleet without rounds": (["task=femnist", "method=fedavg", "fleet=phones_async"], PLAIN),
    "a server that distills": (["task=femnist", *FEDDF_SINKHORN_E], PLAIN),
    "averaging, images from files": (["task=femnist", "method=fedavg", "task.source=local"],
                                     [*HARDWARE, "task.hub.*", "hardware.stack", "method.lr_control"]),
    "chilled": (["task=femnist", "method=fedavg_chill", "method.temperature=0.5"], CHILLED),
    "chilled by a schedule alone": (
        ["task=femnist", "method=fedavg_chill", "method.temperature=1", "method.hard_temperature=2.0"], CHILLED),
    "stacked": (["task=femnist", "method=fedavg", "hardware.engine=stacked"],
                [*HARDWARE, *OTHER_SOURCES, "method.lr_control"]),
    "engine chosen by the hardware": (["task=femnist", "method=fedavg", "hardware.engine=auto"],
                                      [*HARDWARE, *OTHER_SOURCES, "method.lr_control"]),
    "by affinity": (["task=mnist_fedwad", "method=clustered_fedrep"], PLAIN),
    "by the exact distance": (["task=mnist_fedwad", "method=clustered_fedavg", "method.clustering.otdd.solver=exact"],
                              [*PLAIN, FEDWAD, "method.clustering.otdd.precision"]),
    "one cluster of all": (
        ["task=mnist_fedwad", "method=clustered_fedavg", "method.clustering.graph=none"],
        [*PLAIN, "method.clustering.otdd.*", "method.clustering.clusters", "method.clustering.scale"]),
    "distances of clients": (["task=mnist", "method=dataset_distance"], [*UNTRAINED, *OTHER_SOURCES]),
    "distances of data sets": (["task=image_sets", "method=dataset_distance"],
                               [*UNTRAINED, "task.sets.*.local.*", "task.sets.*.hub.*"]),
    "a distance": (["task=gaussians"], UNTRAINED),
    "a distance, exact": (["task=gaussians", "method.fedwad.mode=exact"], [*UNTRAINED, "method.fedwad.support"]),
    "a coreset, exact": (["task=mnist", "method=coreset", "method.distance=exact"],
                         [*UNTRAINED, *OTHER_SOURCES, "method.fedwad.*"]),
    "neighbors of texts": (["task=sa", "method=coreset_knn", "partition=natural"], [*UNTRAINED, *OTHER_TEXTS]),
    "a temperature probe": (["task=femnist", "method=temperature_probe"], CHILLED),
}  # fmt: skip
#: Shares of the partition that are read in rounds, and by the parties of a distillation.
SHARES = {
    "partition.unseen": "rounds", "partition.alter": "rounds", "partition.server": "parties",
    "partition.valid": "rounds parties", "partition.transfer": "rounds parties",
}  # fmt: skip
IN_ROUNDS = ("fedavg", "fedavg_chill", "clustered_fedrep", "clustered_fedavg", "feddf")


@pytest.mark.parametrize("name", of_papers(RUNS))
def test_run_id_covers_exactly_the_used_settings(name: str) -> None:
    overrides, unused = RUNS[name]
    (job,) = compose(overrides)
    reads = "parties" if name == "distilled images" else "rounds" if job.config["method"]["name"] in IN_ROUNDS else ""
    never = [*NEVER, *unused, *(key for key, kinds in SHARES.items() if not reads or reads not in kinds)]
    wrong = []
    for key, value in leaves(job.config):
        if key == "task.kind" or value is None:  # another kind of run altogether; what is not read is null
            continue
        changed, unread = replaced(job.config, key, other(value)), any(fnmatch(key, pattern) for pattern in never)
        counts = run_id(changed) != job.run_id
        if counts and unread:  # made equal where settings are built
            counts = job_of(changed).run_id != job.run_id
        if counts == unread:
            wrong.append(f"{key} {'changes' if counts else 'does not change'} the run id")
    assert not wrong


def _ids(*commands: str) -> list[str]:
    return [compose(command.split())[0].run_id for command in commands]


def test_run_id_equates_whole_and_decimal_rates() -> None:
    known = {"task=femnist method=fedavg": "training.lr", "task=sa method=entropy_a": "training.distill.lr"}
    for words, key in known.items():
        whole, decimal = _ids(f"{words} {key}=1", f"{words} {key}=1.0")
        assert whole == decimal
    one_client, all_clients = _ids(
        "task=femnist training.clients_per_round=1", "task=femnist training.clients_per_round=1.0"
    )
    assert one_client != all_clients  # a number of clients, and a share of them


def test_run_id_equates_default_and_written_share() -> None:
    words = "task=mnist method=entropy_a"
    same = f"{words} partition.server=0.2 partition.transfer=0.2 partition.valid=0.1"
    default, written, other_share = _ids(words, same, f"{words} partition.server=0.3")
    assert default == written != other_share
    feddf = "task=femnist method=feddf"
    default, written, other_share = _ids(feddf, f"{feddf} partition.transfer=0.2", f"{feddf} partition.transfer=0.3")
    assert default == written != other_share
    none, held_out = _ids("task=femnist method=fedavg", "task=femnist method=fedavg partition.transfer=0.2")
    assert none != held_out


def test_run_id_includes_revision_and_engine_but_not_grid_or_report() -> None:
    hub = "task=sa method=entropy_a task.source=hub"
    assert len(set(_ids(hub, f"{hub} task.datasets.Food.hub.revision=x"))) == 2
    lean, loop = _ids(*(f"task=femnist hardware.engine={name}" for name in ("lean", "loop")))
    assert lean != loop
    (job,) = compose(["task=femnist"])
    assert run_id({**job.config, "sweep": {"seed": "0,1"}, "report": {"claims": {}}}) == job.run_id
