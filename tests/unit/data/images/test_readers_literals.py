"""Python batches without unpickling: what plain data needs is read, all else is refused, and nothing ever runs."""

import contextlib
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knot_runner.data.images.cifar import Refused, read_literals

PIXELS = np.arange(4 * 3072, dtype=np.uint32).astype(np.uint8).reshape(4, 3072)


class Reduce:
    """Pickles to a call of ``callee``."""

    def __init__(self, callee, *arguments, state=None):
        self.made = (callee, arguments) if state is None else (callee, arguments, state)

    def __reduce__(self):
        return self.made


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_read_literals_reads_python_3_dumps(protocol):
    batch = {b"data": PIXELS, b"labels": [6, 9, 255, 70000], "filenames": ["a", "b"], b"b": b"\xff"}
    batch[b"pair"] = (1, None, True, ())
    made = read_literals(pickle.dumps(batch, protocol))
    assert made.keys() == batch.keys() and made[b"data"].dtype == np.uint8
    np.testing.assert_array_equal(made.pop(b"data"), batch.pop(b"data"))
    assert made == batch


def test_read_literals_reads_the_python_2_layout(write):
    content = write.python2(PIXELS, [6, 9, 9, 4])
    official = pickle.loads(content, encoding="bytes")  # the layout is what Python's own reader takes
    made = read_literals(content)
    np.testing.assert_array_equal(made[b"data"], official[b"data"])
    assert made[b"labels"] == official[b"labels"] == [6, 9, 9, 4]
    assert made[b"filenames"] == [b"a.png"] * 4


texts = st.text(max_size=20)
numbers = st.integers(-(2**31), 2**31 - 1)
plain = st.recursive(
    st.none() | st.booleans() | numbers | texts | st.binary(min_size=1, max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=25)
@given(value=st.dictionaries(st.text(max_size=5), plain, max_size=4), protocol=st.integers(2, 4))
def test_read_literals_equals_pickle_on_plain_data(value, protocol):
    assert read_literals(pickle.dumps(value, protocol)) == value


def gadgets(sentinel):
    """Pickles that make ``sentinel`` when they are unpickled."""
    touch, code = f"touch '{sentinel}'", f"open({str(sentinel)!r}, 'w')"
    text = touch.encode()
    short = b"\x8c" + bytes([len(text)]) + text
    quoted = b"(S'" + text.replace(b"'", b"\\'") + b"'\n"
    made = {f"os.system, protocol {p}": pickle.dumps(Reduce(os.system, touch), p) for p in range(6)}
    return made | {
        "eval, protocol 0": pickle.dumps(Reduce(eval, code), 0),
        "in a batch": pickle.dumps({b"data": PIXELS, b"labels": [Reduce(os.system, touch)]}, 4),
        "as a key": pickle.dumps({b"data": PIXELS, Reduce(eval, code): 1}, 4),
        "getattr": pickle.dumps(Reduce(getattr, Reduce(__import__, "os"), "system"), 4)[:-1] + short + b"\x85R.",
        "map in a list": pickle.dumps(Reduce(list, Reduce(map, eval, [code])), 4),
        "GLOBAL": b"\x80\x02cposix\nsystem\n" + quoted + b"tR.",
        "STACK_GLOBAL by memo": b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94h\x00h\x01\x93" + short + b"\x85R.",
        "INST": quoted + b"iposix\nsystem\n.",
        "OBJ": b"\x80\x02(cposix\nsystem\n" + b"X" + struct.pack("<I", len(text)) + text + b"o.",
        "BUILD": pickle.dumps(Reduce(Thing, state={"a": Reduce(eval, code)}), 4),
        "after the array": pickle.dumps([PIXELS, Reduce(eval, code)], 5),
        "before STOP, popped": b"\x80\x04\x8c\x05posix\x8c\x06system\x93" + short + b"\x85R0N.",
        "NEWOBJ": b"\x80\x02c__builtin__\nmap\n(cposix\nsystem\n]" + short + b"at\x81q\x00"
        b"c__builtin__\nlist\nh\x00\x85R.",
    }  # fmt: skip


class Thing:
    """Something that an object could be built into."""


@pytest.mark.parametrize("name", gadgets(Path("unused")))
def test_read_literals_refuses_gadgets(tmp_path, name):
    sentinel = tmp_path / "ran"
    content = gadgets(sentinel)[name]
    with pytest.raises(Refused):
        read_literals(content)
    assert not sentinel.exists()
    with contextlib.suppress(Exception):  # the control: unpickled, it does run
        pickle.loads(content)
    assert sentinel.exists(), "this gadget is not live, so the test shows nothing"


U1 = b"\x80\x05cnumpy._core.numeric\n_frombuffer\n(\x96\x03" + b"\0" * 7 + b"abccnumpy\ndtype\nU\x02u1\x85RK"
HOSTILE = {
    "a memo of 16 GB": b"\x80\x02]r" + struct.pack("<I", 0xFFFFFFFF) + b"cos\nsystem\n.",
    "bytes of 2**63": b"\x80\x04\x8e" + struct.pack("<Q", 2**63 - 1) + b"abc.",
    "text of 2**62": b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"abc.",
    "a bytearray of 2**62": b"\x80\x05\x96" + struct.pack("<Q", 2**62) + b"abc.",
    "a number of 2**31 bytes": b"\x80\x02\x8b" + struct.pack("<I", 2**31 - 1) + b"\x01.",
    "a number of a million digits": b"L" + b"9" * 1_000_000 + b"L\n.",
    "EXT1": b"\x80\x02\x82\x01.", "PERSID": b"Pabc\n.", "BINPERSID": b"\x80\x02NQ.",
    "BUILD on a list": b"\x80\x02]}b.", "BUILD on a dict": b"\x80\x02}}b.",
    "BUILD on a name": b"\x80\x02cnumpy\nndarray\n}b.",
    "a call of the array class": b"\x80\x02cnumpy\nndarray\n)R.",
    "a call without arguments": b"\x80\x02cnumpy\ndtype\n)R.", "a call of a text": b"\x80\x02U\x02os)R.",
    "dtype object": b"\x80\x02cnumpy\ndtype\nU\x01O\x85R.",
    "dtype of shared tuples": b"\x80\x02cnumpy\ndtype\nK\x00" + b"q\x00h\x00\x86" * 60 + b"\x85R.",
    "encode by another codec": b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R.",
    "a dict in itself as key": b"\x80\x02}q\x00(h\x00h\x00u.", "a list as key": b"\x80\x02}]K\x01s.",
    "an array of more than its bytes": U1 + b"\x04\x85U\x01CtR.",
    "an array of less than its bytes": U1 + b"\x02\x85U\x01CtR.", "no stack": b"\x80\x02.", "no STOP": b"\x80\x02]",
    "nothing": b"", "a mark alone": b"\x80\x02(.", "a memo that is not there": b"\x80\x02h\x07.",
    "half an item": b"\x80\x02}(U\x01au.", "a tuple as key": b"\x80\x02}(K\x01\x85Nu.",
    "an unknown opcode": b"\x80\x02\xff.", "a text that is no UTF-8": b"\x80\x02X\x01\x00\x00\x00\xff.",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_read_literals_refuses_hostile_files(name):
    with pytest.raises(Refused) as caught:
        read_literals(HOSTILE[name])
    assert "\n" not in str(caught.value)


def test_read_literals_limits_texts_and_opcodes_but_no_nesting(monkeypatch):
    assert isinstance(read_literals(b"\x80\x02)" + b"\x85" * 100_000 + b"."), tuple)
    text = b"X" + struct.pack("<I", 10_000) + b"a" * 10_000 + b"q\x01"
    one = b"c_codecs\nencode\nh\x01X\x06\x00\x00\x00latin1\x86R"
    assert read_literals(b"\x80\x02(" + text + one + b"t.")[1] == b"a" * 10_000
    with pytest.raises(Refused, match="not allowed"):
        read_literals(b"\x80\x02(" + text + one * 1000 + b"t.")
    monkeypatch.setattr("knot_runner.data.images.cifar.MAX_OPCODES", 100)
    assert read_literals(b"\x80\x02](" + b"K\x01" * 50 + b"e.") == [1] * 50
    with pytest.raises(Refused, match="more than 100 opcodes"):
        read_literals(b"\x80\x02](" + b"K\x01" * 200 + b"e.")


@pytest.mark.parametrize("protocol", [2, 4])
def test_read_literals_reads_or_refuses_changed_bytes(write, protocol):
    content = pickle.dumps({b"data": PIXELS, b"labels": [1, 2]}, protocol)
    if protocol == 2:
        content = write.python2(PIXELS, [1, 2, 3, 4])
    program = [i for i in range(len(content)) if not 500 < i < len(content) - 200] + [510]  # not only in the pixels
    random = np.random.default_rng(protocol)
    for _ in range(300):
        changed = bytearray(content)
        for at in random.choice(program, random.integers(1, 4)):
            changed[at] = random.integers(256)
        with contextlib.suppress(Refused):
            read_literals(bytes(changed))
