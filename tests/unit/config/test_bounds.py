"""Every number of every setting has an upper bound."""

import itertools
from contextlib import contextmanager

import pytest

from knot_runner.composing.commands import compose_all
from knot_runner.config.settings.partition import Manual
from knot_runner.config.settings.run import build_run
from knot_runner.config.strict import MAX_COUNT, MAX_NUMBER, build
from knot_runner.util import shared_memory as memory
from knot_runner.util.errors import UserError
from tests.golden.messages import refuses
from tests.of_papers import of_papers

#: One command per kind of settings, so that all dataclasses of numbers are met.
BASES = {
    "texts": [],
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
    "models": ["task=femnist", "method=fedmd"],
    "teachers": ["task=femnist", "method=kd"],
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


@contextmanager
def with_value(config, path, value):
    """Change one value of ``config``, and restore it."""
    node = config
    for key in path[:-1]:
        node = node[key]
    before, node[path[-1]] = node[path[-1]], value
    yield config
    node[path[-1]] = before


@pytest.mark.parametrize("base", of_papers(BASES))
def test_build_run_refuses_values_beyond_bounds_or_of_another_kind(base):
    config = compose_all(BASES[base])[0][0].config
    paths = list(numbers(config))
    assert len(paths) > 5
    kinds = [(("partition",), True), (("model",), [3])]
    kinds += itertools.product([("method", "models"), ("method", "teachers")], ([None], [{}]))
    present = [case for case in kinds if case[0][-1] in {**config, **config["method"]}]
    for path, value in [*itertools.product(paths, (10**31, 1e300)), *present]:
        with with_value(config, path, value) as changed, pytest.raises(UserError) as refused:
            build_run(changed)
            pytest.fail(f"{path} takes {value}")
        text = str(refused.value)
        words = [str(key) for key in path if isinstance(key, str)]
        named = text.startswith(words[0]) and words[-1] in text
        assert named and "\n" not in text and len(text) < 300, (path, text)


def test_bounds_are_of_magnitudes_and_inclusive():
    manual = {"kind": "manual", "num_clients": 10**6, "classes_per_client": 2, "mu": -100.0, "sigma": 2.0, "offset": 50}
    assert build(Manual, manual, "partition") == Manual(**manual)
    for key, value in (("mu", -100.5), ("mu", 100.5), ("num_clients", 10**6 + 1)):
        with refuses():
            build(Manual, {**manual, key: value}, "partition")
    assert MAX_COUNT < 2**31 and MAX_NUMBER < 3.4e38  # of 32 bits


def test_size_text_has_units():
    assert [memory.size_text(n) for n in (999, 1000, 2.5e9, 3e20)] == ["999 bytes", "1.0 KB", "2.5 GB", "300.0 EB"]
