"""Safe YAML: equal to what ``yaml`` reads, and nothing that is hostile."""

import os

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knot_runner.util.config_yaml import DEEPEST, LONGEST_CONFIG, read_config

numbers = st.one_of(st.integers(-(10**15), 10**15), st.floats(allow_nan=False, allow_infinity=False, width=64))
words = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=6)
scalars = st.one_of(numbers, st.booleans(), st.none(), words)
configs = st.dictionaries(
    st.from_regex(r"k[a-z_]{0,5}", fullmatch=True),
    st.recursive(
        st.one_of(scalars, st.text(max_size=20)),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
        max_leaves=8,
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(configs, st.booleans())
def test_config_is_read_as_yaml_reads_it(tmp_path, config, flow):
    path = tmp_path / "config.yaml"
    config["of_groups"] = {"a": {"b": 1}}
    dumper = type("Plain", (yaml.SafeDumper,), {"ignore_aliases": lambda *_: True})
    path.write_text(yaml.dump(config, Dumper=dumper, sort_keys=False, default_flow_style=None if flow else False))
    assert read_config(path) == yaml.safe_load(path.read_text())


BOMBS = {
    "alias": "a: &x [1]\nb: 2\nc: *x\n",
    "alias in one section": "a:\n  b: &x [1]\n  c: *x\n",
    "deep list": "a: " + "[" * 60_000,
    "deep mapping": "a: " + "{a: " * 60_000,
    "a little too deep": "a: " + "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1),
    "python": "a: !!python/object/apply:os.system [echo]\n",
    "twice": "a: 1\nb: 2\na: 3\n",
    "list": "- 1\n- 2\n",
    "long": "a: " + "x" * LONGEST_CONFIG,
    "cut": "a: [1, 2\nb: 3\n",
    "number": "a: " + "9" * 10_000,
    "documents": "a: 1\n---\nb: 2\n",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_hostile_yaml_is_refused(tmp_path, bomb):
    (tmp_path / "config.yaml").write_text(BOMBS[bomb])
    with pytest.raises(ValueError):
        read_config(tmp_path / "config.yaml")


def test_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "config.yaml")
    with pytest.raises(ValueError, match="not a regular file"):
        read_config(tmp_path / "config.yaml")
