"""Every number of every setting has an upper bound, and what no memory holds is refused by name before it is begun."""

import copy
import math
import platform
from pathlib import Path

import pytest

from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_all
from knot_runner.config.settings import PARTITION_SETTINGS, ModelSettings, build_run
from knot_runner.config.settings.partition import Manual
from knot_runner.config.strict import MAX_COUNT, MAX_NUMBER, build
from knot_runner.pipelines.runs import needs
from knot_runner.util import memory
from knot_runner.util.errors import UserError
from tests.tiny import TINY, TINY_IMAGES, replaced

#: One command per kind of settings, so that all dataclasses of numbers are met.
BASES = {
    "texts": ["+model.per_party.Cell.hidden=32"],
    "fedprox": ["task=femnist", "method=fedprox", "+method.schedule={shape:linear,end:1.0,rounds:3}",
                "+method.stragglers={share:0.5,temperature:2.0,epochs:1}"],
    "fedrep on a cnn": ["task=cifar10", "method=fedrep", "model=cnn_mcmahan", "partition=shards"],
    "resnet": ["task=cifar10", "model=resnet18", "partition=dirichlet"],
    "wrn": ["task=cifar10", "model=wrn_16_1", "partition=dirichlet"],
    "vgg": ["task=cifar10", "model=vgg8", "partition=dirichlet"],
    "mobilenet": ["task=gld23k"],
    "clustered": ["task=mnist_fedwad", "method=clustered_fedavg"],
    "distances": ["task=mnist", "partition=pairs", "method=dataset_distance"],
    "coreset": ["task=mnist", "method=coreset", "partition=iid"],
    "gaussians": ["task=gaussians"],
    "probe": ["task=cifar10", "method=temperature_probe"],
}  # fmt: skip
#: What is no number of a run: plug-ins' own, what is shown, the words of a probe; ``where`` has a file's values.
FREE = ("sweep", "report", "plugins", "task.probe", "method.options")


def numbers(node, where=()):
    """Path of every number, in mappings and lists."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in pairs:
        path = (*where, key)
        if ".".join(map(str, path)) in FREE or key == "where":
            continue
        if isinstance(value, dict | list):
            yield from numbers(value, path)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield path


def with_value(config, path, value):
    made = copy.deepcopy(config)
    node = made
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return made


@pytest.mark.parametrize("base", BASES)
def test_no_number_is_without_an_upper_bound(base):
    config = compose_all(BASES[base])[0][0].config
    paths = list(numbers(config))
    assert len(paths) > 5
    for path in paths:
        for value in (10**31, 1e300):
            with pytest.raises(UserError) as refused:
                build_run(with_value(config, path, value))
                pytest.fail(f"{path} takes {value:.0e}")
            text = str(refused.value)
            words = [str(key) for key in path if isinstance(key, str)]
            assert text.startswith(words[0]) and words[-1] in text and "\n" not in text and len(text) < 300, (
                path,
                text,
            )


def test_the_bounds_are_of_magnitudes_and_the_largest_is_right():
    manual = {"kind": "manual", "clients": 10, "classes_per_client": 2, "mu": 4.0, "sigma": 2.0, "offset": 50}
    assert build(Manual, {**manual, "mu": -100.0}, "partition").mu == -100
    for mu in (-100.5, 100.5):
        with pytest.raises(UserError, match="partition.mu: -?100.5 is "):
            build(Manual, {**manual, "mu": mu}, "partition")
    assert build(Manual, {**manual, "clients": 10**6}, "partition").clients == 10**6
    with pytest.raises(UserError, match="partition.clients: 1000001 is above 1e"):
        build(Manual, {**manual, "clients": 10**6 + 1}, "partition")
    assert MAX_COUNT < 2**31 and MAX_NUMBER < 3.4e38  # of 32 bits


def test_every_partition_has_a_bound_on_its_clients():
    for kind, spec in PARTITION_SETTINGS.items():
        keys = [name for name in ("clients", "count") if name in spec.__dataclass_fields__]
        assert keys or kind == "centralised"


IMAGES = [a for a in TINY_IMAGES if not a.startswith(("model.", "task.shape="))]
TOO_LARGE = [
    (replaced(TINY_IMAGES, "model.hidden=[10000000]"), "model.hidden: a model of 750,000,010 parameters"),
    ([*IMAGES, "model=cnn_mcmahan", "model.hidden=[5000000]"], "model.hidden: a model of"),
    ([*IMAGES, "model=resnet18_gn", "model.groups=1", "model.width=2000"], "model.width: a model of"),
    ([*IMAGES, "model=wrn_16_1", "model.widen=1000"], "model.widen: a model of"),
    ([*IMAGES, "model=vgg8", "model.pools=1", "model.stages=[[100000],[1000]]"], "model.stages: a model of"),
    (replaced(TINY_IMAGES, "task.shape=[1,4000,4000]"), "task.shape: 1797 images of 1x4000x4000"),
    (replaced(TINY, "model.hidden=100000", "model.heads=1"), "model.hidden: a model of more than"),
    (replaced(TINY, "model.intermediate=10000000"), "model.intermediate: a model of more than"),
    ([*TINY, "+model.per_party.Cell={hidden:100000,heads:1}"], "model.per_party.Cell.hidden: a model of more than"),
    (replaced(TINY, "method.bias.texts=10000000"), "method.bias.texts: 10000000 texts of 20 pieces"),
    ([*TINY, "task.datasets.Cell.embedded.rows=100000000"], "task.datasets.Cell.embedded.rows: 100000000 generated"),
    (["task=gaussians", "task.samples=1000000"], "task.samples: distances between 1000000 and"),
    (["task=gaussians", "task.dimension=100000000"], "task.dimension: "),
    (["task=gaussians", "method.fedwad.mode=approximate", "method.fedwad.support=10000000"], "method.fedwad.support: "),
    (["task=mnist", "partition=iid", "method=coreset", "method.points=10000000"], "method.points: a coreset of"),
    (["task=mnist_fedwad", "method=clustered_fedavg", "method.clustering.otdd.fedwad.support=10000000"],
     "method.clustering.otdd.fedwad.support: a measure of"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "said"), TOO_LARGE, ids=[a[-1] for a, _ in TOO_LARGE])
def test_what_no_memory_holds_is_refused_before_it_is_begun(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(memory, "machine_memory", lambda: 1.5e9)
    assert main([*arguments, f"paths.out={tmp_path}"]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("knot-runner: ")]
    assert len(lines) == 1 and said in lines[0] and "this machine has 1.5 GB" in lines[0], lines
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".yaml", ".json", ".safetensors")]


def test_what_fits_is_not_refused(monkeypatch):
    """The lower bounds are below what the runs of the presets take, by far."""
    monkeypatch.setattr(memory, "machine_memory", lambda: 2e9)
    for arguments in ([], ["task=femnist"], ["task=gaussians"], ["task=mnist_fedwad", "method=clustered_fedavg"]):
        (job,), _ = compose_all(arguments)
        needs.check_memory(job.settings, job.method)


def test_the_text_models_size_is_counted_from_below():
    from knot_runner.models.network import Network
    from knot_runner.models.network import build_network as built

    (job,), _ = compose_all(TINY)
    spec: ModelSettings = job.settings.model
    real = sum(p.numel() for p in built(Network(spec, 100, 3)).parameters())
    assert 0 < needs.parameters(spec) < real


def test_more_clients_than_images_are_refused_by_name(tmp_path, capsys):
    for partition in ("iid", "dirichlet"):
        arguments = [*TINY_IMAGES, "~partition.count", "~partition.alpha"]
        arguments = [a for a in TINY_IMAGES if not a.startswith("partition.")] + [f"partition={partition}"]
        assert main([*arguments, "partition.clients=1000000", f"paths.out={tmp_path}"]) == 2
        assert "partition.clients: 1000000 are more than the 300 training examples" in capsys.readouterr().err


def test_memory_is_the_machines_or_the_containers(tmp_path, monkeypatch):
    meminfo, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    meminfo.write_text("MemTotal:        1000 kB\nMemFree: 10 kB\n")
    monkeypatch.setattr(memory, "MEMINFO", meminfo)
    monkeypatch.setattr(memory, "LIMITS", (limit,))
    assert memory.machine_memory() == 1000 * 1024
    limit.write_text("max\n")
    assert memory.machine_memory() == 1000 * 1024
    limit.write_text("4096\n")
    assert memory.machine_memory() == 4096
    meminfo.unlink()
    limit.unlink()
    assert memory.machine_memory() == math.inf
    memory.require_memory(1e30, "x", "y")  # where the system does not say, nothing is refused


def test_sizes_in_words():
    assert [memory.size_text(n) for n in (999, 1000, 2.5e9, 3e20)] == ["999 bytes", "1.0 KB", "2.5 GB", "300.0 EB"]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep holes as they please")
def test_holes_between_what_is_kept_are_given_back():
    """48 MB in small pieces of which every other one is freed: half of that, less what lies beside what is kept."""
    pieces = [bytearray(64 * 1024) for _ in range(768)]
    for piece in pieces:
        piece[::4096] = b"x" * 16
    del pieces[::2]
    held = memory.read_kilobytes(Path("/proc/self/status"), "RssAnon:")
    memory.give_back_freed()
    assert held - memory.read_kilobytes(Path("/proc/self/status"), "RssAnon:") > 16 * 2**20
    assert len(pieces) == 384


def test_where_the_c_library_cannot_nothing_is_given_back(monkeypatch):
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())
    memory.give_back_freed()
