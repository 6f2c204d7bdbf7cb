"""Values put into a config by hand-made examples; ``test_compose.py`` holds whole configs against Hydra's own."""

import pytest
from omegaconf import OmegaConf

from knot_runner.composing.commands import compose_all
from knot_runner.composing.hydra_compose import plain_config
from knot_runner.composing.job import with_values
from knot_runner.composing.overrides import parse_overrides
from knot_runner.config.settings.methods.knot import SinkhornSettings
from tests.golden.messages import refuses


def put(config, *overrides):
    made = OmegaConf.create(config)
    OmegaConf.set_struct(made, True)
    return plain_config(with_values(made, parse_overrides(overrides)))


@pytest.mark.parametrize(("config", "overrides", "expected"), [
    ({"a": 1, "b": "${a}"}, ["a=2"], {"a": 2, "b": 2}),
    ({"a": 1, "b": {"c": "x${a}y", "d": [1]}}, ["a=2"], {"a": 2, "b": {"c": "x2y", "d": [1]}}),
    ({"a": 1, "b": ["${a}", 3]}, ["a=2"], {"a": 2, "b": [2, 3]}),
    ({"a": 1, "b": [{"c": "${a}"}]}, ["a=2"], {"a": 2, "b": [{"c": 2}]}),
    ({"a": 1, "b": {"c.d": "${a}"}}, ["a=2"], {"a": 2, "b": {"c.d": 2}}),
    ({"a": 1, "b": {5: "${a}"}}, ["a=2"], {"a": 2, "b": {5: 2}}),
    ({"a": 1, "b": {"c": 3}}, ["a=null", "b={c:4}"], {"a": None, "b": {"c": 4}}),
    ({"a": [1, 2], "b": 0}, ["a.0=7"], {"a": [7, 2], "b": 0}),
    ({"a": {"x": 1}, "b": "${a}", "c": 0}, ["c=1", "a.x=5"], {"a": {"x": 5}, "b": {"x": 5}, "c": 1}),
    ({"a": 1, "b": "${a}"}, ["b=9"], {"a": 1, "b": 9}), ({"a": 1, "b": 2}, ["b=${a}"], {"a": 1, "b": 1}),
])  # fmt: skip
def test_values_and_what_stands_for_them(config, overrides, expected):
    assert put(config, *overrides) == expected


def test_overrides_add_keys_and_refuse_unresolved_values():
    assert put({"a": 1}, "nosuch.b=1") == {"a": 1, "nosuch": {"b": 1}}
    with refuses():
        put({"a": 1, "b": "${nosuch}"}, "a=2")
    with refuses():
        put({"a": 1, "b": "???"}, "a=2")


def test_a_swept_mapping_leaves_the_base_unchanged():
    jobs, _ = compose_all(["method=entropy_a", "method.loss=sinkhorn,{form:symmetric}"])
    assert [job.config["method"]["loss"]["name"] for job in jobs] == ["sinkhorn", "entropy"]


@pytest.mark.parametrize("overrides", [
    ["method.loss=sinkhorn", "method.loss.epsilon=0.1"],
    ["method.loss.epsilon=0.1", "method.loss=sinkhorn"],
    ["base/loss@method.loss=sinkhorn", "method.loss.epsilon=0.1"],
])  # fmt: skip
def test_part_of_another_kind_takes_its_own_keys_in_any_order(overrides):
    loss = compose_all(["method=entropy_a", *overrides])[0][0].method.loss
    assert loss == SinkhornSettings("sinkhorn", "newton", 0.1, 1e-6, 0.5)
