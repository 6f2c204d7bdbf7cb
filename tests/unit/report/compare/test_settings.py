"""Settings as text, keys and filters of ``compare``."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knot_runner.report.compare import settings as compared
from tests.golden.messages import refuses

numbers = st.one_of(st.integers(-(10**15), 10**15), st.floats(allow_nan=False, allow_infinity=False, width=64))


@given(numbers)
def test_number_is_the_same_typed_or_stored(value):
    text = compared.written(value)
    assert compared.typed(text) == text == compared.typed(repr(value)) == compared.typed(f" {value!r} ")
    assert compared.as_number(text) == value or abs(value) >= 1e300


@pytest.mark.parametrize(("value", "text"), [
    (4.0, "4"), ("1e-3", "0.001"), (True, "true"), (None, "null"), ([1, 2.0, "a"], "[1,2,a]"), ("007", "007"),
    (0.05, "0.05"), ("1E+2", "100"), ({}, "{}"), (-0.0, "0"),
])  # fmt: skip
def test_value_is_written_as_it_is_typed(value, text):
    assert compared.written(value) == text


def test_text_that_is_no_number():
    assert [compared.as_number(text) for text in ("007", "nan", "inf", "", "a", "1.50", "1_0", None)] == [None] * 8


def test_sort_key_orders_numbers_words_then_absent():
    order = ["-1", "0.5", "9", "10", "a", "b", None]
    assert sorted(["b", "10", None, "9", "a", "-1", "0.5"], key=compared.sort_key) == order


def test_flatten_settings():
    nested = {"a": {"b": 1, "c": {"d": [1, [2]]}, "e": {}}, "f": None, 3: "x"}
    assert compared.flatten_settings(nested) == {"a.b": "1", "a.c.d": "[1,[2]]", "a.e": "{}", "f": "null", "3": "x"}


KEYS = ["task.name", "method.name", "method.server.lr", "training.lr", "partition.kind", "seed"]


def test_keys_have_short_forms():
    found = [compared.resolve_key(key, KEYS) for key in ("task", "seed", "partition", "training.lr")]
    assert found == ["task.name", "seed", "partition.kind", "training.lr"]


@pytest.mark.parametrize("key", ["lr", "taks", "zzzz"])
def test_unknown_key_is_refused(key):
    with refuses():
        compared.resolve_key(key, KEYS)


@given(st.lists(st.text("ab.", min_size=1, max_size=7), unique=True, max_size=6))
def test_short_names_differ(keys):
    short = compared.short_names(keys)
    assert len(set(short.values())) == len(keys)


KEY = st.sampled_from(["task.name", "method.name", "method.a", "x", "y.z", "y.w"])
tables = st.lists(st.dictionaries(KEY, st.sampled_from("01")), min_size=1, max_size=12)


@given(tables)
def test_telling_keeps_minimal_distinguishing_settings(rows):
    settings = pd.DataFrame(rows, dtype=object)
    keys = compared.varying(settings)
    assert set(keys) == {k for k in {k for r in rows for k in r} if len({r.get(k) for r in rows}) > 1}
    chosen = compared.telling(settings, keys)

    def groups(of):
        return {frozenset(j for j, b in enumerate(rows) if all(a.get(k) == b.get(k) for k in of)) for a in rows}

    assert groups(chosen) == groups(keys)
    for key in set(chosen) - {"task.name", "method.name"}:
        assert groups([other for other in chosen if other != key]) != groups(keys)


@given(tables)
def test_row_numbers_follow_order_of_settings(rows):
    settings = pd.DataFrame(rows, dtype=object)
    keys = list(settings)
    values = [tuple(row.get(key) for key in keys) for row in rows]
    order = sorted(set(values), key=lambda own: tuple(map(compared.sort_key, own)))
    assert compared.row_numbers(settings, keys).tolist() == [order.index(own) for own in values]
    assert compared.row_numbers(settings, ()).tolist() == [0] * len(rows)


@pytest.mark.parametrize(("text", "passes", "fails"), [
    ("seed=0,1", ["0", "1"], ["2", None]), ("lr=1e-2", ["0.01"], ["0.1"]), ("flag=True", ["true"], ["1", "false"]),
    ("name!=a", ["b", None], ["a"]), ("lr>=0.01", ["0.01", "1"], ["0.001", "a", None]),
    ("lr<1", ["0.5"], ["1", "null"]), ("hidden=[512, 256],[8]", ["[512,256]", "[8]"], ["512"]),
    ("mu=null", ["null"], [None, "0"]), ("graph=none", ["none"], ["null", None]), ("x=a=b", ["a=b"], ["a"]),
])  # fmt: skip
def test_filter_keeps_matching_values(text, passes, fails):
    asked = compared.parse_filter(text)
    values = pd.Series([*passes, *fails], dtype=object)
    assert asked.holds(values).tolist() == [True] * len(passes) + [False] * len(fails)


@pytest.mark.parametrize("text", ["seed", "=3", "seed=", "seed=1,,2", "lr>=a", "lr>1,2", "lr<nan", ""])
def test_invalid_filter_is_refused(text):
    with refuses():
        compared.parse_filter(text)


def test_commas_in_brackets_do_not_split():
    assert compared.split_commas("a,[1,[2,3]],{b,c}") == ["a", "[1,[2,3]]", "{b,c}"]
