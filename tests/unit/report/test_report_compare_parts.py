"""Settings as text, filters, measures and safe YAML: what ``compare`` is built of."""

import os
from dataclasses import replace

import pandas as pd
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knot_runner.report.compare import measures as compare_measures
from knot_runner.report.compare.settings import (
    as_number,
    flatten_settings,
    parse_filter,
    resolve_key,
    row_numbers,
    short_names,
    sort_key,
    split_commas,
    telling,
    typed,
    varying,
    written,
)
from knot_runner.report.frame import read_runs
from knot_runner.util.config_yaml import DEEPEST, LONGEST_CONFIG, read_config
from tests.golden.messages import refuses
from tests.unit.report.compared import made

numbers = st.one_of(st.integers(-(10**15), 10**15), st.floats(allow_nan=False, allow_infinity=False, width=64))
words = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=6)
scalars = st.one_of(numbers, st.booleans(), st.none(), words)


# -------------------------------------------------------------------------------------------------------------- values


@given(numbers)
def test_a_number_is_the_same_typed_or_stored(value):
    text = written(value)
    assert typed(text) == text == typed(repr(value)) == typed(f" {value!r} ")
    assert as_number(text) == value or abs(value) >= 1e300


@pytest.mark.parametrize(
    ("value", "text"),
    [(4.0, "4"), ("1e-3", "0.001"), (True, "true"), (None, "null"), ([1, 2.0, "a"], "[1,2,a]"), ("007", "007"),
     (0.05, "0.05"), ("1E+2", "100"), ({}, "{}"), (-0.0, "0")],
)  # fmt: skip
def test_values_as_one_types_them(value, text):
    assert written(value) == text


@pytest.mark.parametrize("text", ["007", "nan", "inf", "", "a", "1.50", "1_0", None])
def test_what_is_no_number(text):
    assert as_number(text) is None


def test_sorted_by_size_then_words_then_absent():
    assert sorted(["b", "10", None, "9", "a", "-1", "0.5"], key=sort_key) == ["-1", "0.5", "9", "10", "a", "b", None]


def test_flatten():
    nested = {"a": {"b": 1, "c": {"d": [1, [2]]}, "e": {}}, "f": None, 3: "x"}
    assert flatten_settings(nested) == {"a.b": "1", "a.c.d": "[1,[2]]", "a.e": "{}", "f": "null", "3": "x"}


# ---------------------------------------------------------------------------------------------------------------- keys


KEYS = ["task.name", "method.name", "method.server.lr", "training.lr", "partition.kind", "seed"]


def test_keys_and_their_short_forms():
    assert [resolve_key(key, KEYS) for key in ("task", "seed", "partition", "training.lr")] == [
        "task.name", "seed", "partition.kind", "training.lr",
    ]  # fmt: skip


@pytest.mark.parametrize("key", ["lr", "taks", "zzzz"])
def test_a_key_that_is_not_there(key):
    with refuses() as problem:
        resolve_key(key, KEYS)
    assert "\n" not in str(problem.value) and len(str(problem.value)) < 160


@given(st.lists(st.text("ab.", min_size=1, max_size=7), unique=True, max_size=6))
def test_short_names_differ(keys):
    short = short_names(keys)
    assert len(set(short.values())) == len(keys)


tables = st.lists(
    st.dictionaries(
        st.sampled_from(["task.name", "method.name", "method.a", "x", "y.z", "y.w"]), st.sampled_from("01")
    ),
    min_size=1,
    max_size=12,
)


@given(tables)
def test_telling_settings_tell_as_much_and_no_more_than_needed(rows):
    settings = pd.DataFrame(rows, dtype=object)
    keys = varying(settings)
    assert set(keys) == {k for k in {k for r in rows for k in r} if len({r.get(k) for r in rows}) > 1}
    chosen = telling(settings, keys)

    def groups(of):
        return {frozenset(j for j, b in enumerate(rows) if all(a.get(k) == b.get(k) for k in of)) for a in rows}

    assert groups(chosen) == groups(keys)
    for key in set(chosen) - {"task.name", "method.name"}:
        assert groups([other for other in chosen if other != key]) != groups(keys)


@given(tables)
def test_rows_are_numbered_in_the_order_of_their_settings(rows):
    settings = pd.DataFrame(rows, dtype=object)
    keys = list(settings)
    values = [tuple(row.get(key) for key in keys) for row in rows]
    order = sorted(set(values), key=lambda own: tuple(map(sort_key, own)))
    assert row_numbers(settings, keys).tolist() == [order.index(own) for own in values]
    assert row_numbers(settings, ()).tolist() == [0] * len(rows)


# ------------------------------------------------------------------------------------------------------------- filters


@pytest.mark.parametrize(("text", "passes", "fails"), [
    ("seed=0,1", ["0", "1"], ["2", None]), ("lr=1e-2", ["0.01"], ["0.1"]), ("flag=True", ["true"], ["1", "false"]),
    ("name!=a", ["b", None], ["a"]), ("lr>=0.01", ["0.01", "1"], ["0.001", "a", None]),
    ("lr<1", ["0.5"], ["1", "null"]), ("hidden=[512, 256],[8]", ["[512,256]", "[8]"], ["512"]),
    ("mu=null", ["null"], [None, "0"]), ("graph=none", ["none"], ["null", None]), ("x=a=b", ["a=b"], ["a"]),
])  # fmt: skip
def test_filters(text, passes, fails):
    asked = parse_filter(text)
    values = pd.Series([*passes, *fails], dtype=object)
    assert asked.holds(values) == [True] * len(passes) + [False] * len(fails)


@pytest.mark.parametrize("text", ["seed", "=3", "seed=", "seed=1,,2", "lr>=a", "lr>1,2", "lr<nan", ""])
def test_no_filter(text):
    with refuses():
        parse_filter(text)


def test_commas_in_brackets_part_nothing():
    assert split_commas("a,[1,[2,3]],{b,c}") == ["a", "[1,[2,3]]", "{b,c}"]


# ------------------------------------------------------------------------------------------------------------ measures


NUMBERS = ["metrics.f1.ALL", "metrics.f1.MELD", "metrics.client_accuracy.weighted", "seconds.total", "best.accuracy"]


def test_measures_and_their_short_forms():
    names = ("f1", "f1.MELD", "seconds", "best.accuracy", "client_accuracy.weighted", "metrics.f1.ALL")
    found = [compare_measures.resolve_measure(name, NUMBERS) for name in names]
    assert found == [NUMBERS[i] for i in (0, 1, 3, 4, 2, 0)]
    assert [compare_measures.measure_title(key) for key in found[:3]] == ["f1", "f1.MELD", "seconds.total"]


@pytest.mark.parametrize("name", ["f1.MELT", "client_accuracy", "zzz", "best.acuracy"])
def test_measures_that_are_not_there(name):
    with refuses():
        compare_measures.resolve_measure(name, NUMBERS)


def test_measures_that_all_have_are_shown_or_the_first_that_any_has(tmp_path):
    for seed in range(2):
        made(tmp_path, 0.5, seed=seed)
    runs = read_runs(tmp_path)
    assert compare_measures.measures_of(runs, ()) == ["metrics.accuracy.ALL", "metrics.f1.ALL"]

    def told(*rows):
        metrics = pd.DataFrame(rows, columns=["run", "metric", "value"]).set_index("run")
        return compare_measures.measures_of(replace(runs, metrics=metrics), ())

    unlike = (0, "metrics.f1.ALL", 0.5), (0, "metrics.sd.ALL", 0.5), (1, "value", 0.5)
    assert told(*unlike) == ["metrics.f1.ALL"]
    assert told(*unlike, (0, "value", 0.1)) == ["value"] and told(*unlike, (0, "value", None)) == ["metrics.f1.ALL"]
    assert told((0, "seconds.total", 1.0), (1, "seconds.total", 2.0)) == ["seconds.total"] and told() == []


def test_which_way_is_better():
    ways = {
        "metrics.f1.ALL": "higher", "teachers.MELD.sd": "lower", "seconds.stages.x": "lower", "best.round": None,
        "metrics.accuracy.ALL": "higher", "metrics.distance.ALL": "lower", "rounds_to_target": "lower", "ari": "higher",
    }  # fmt: skip
    assert {key: compare_measures.direction(key) for key in ways} == ways


# ---------------------------------------------------------------------------------------------------------------- YAML


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


@pytest.mark.thorough
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(configs, st.booleans())
def test_section_by_section_is_what_yaml_reads(tmp_path, config, flow):
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
def test_bombs_are_refused(tmp_path, bomb):
    (tmp_path / "config.yaml").write_text(BOMBS[bomb])
    with pytest.raises(ValueError):
        read_config(tmp_path / "config.yaml")


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "config.yaml")
    with pytest.raises(ValueError, match="not a file"):
        read_config(tmp_path / "config.yaml")
