"""Signals while libraries work that catch every exception, and limits of memory."""

import os
import resource
import signal
import time

import pytest

from knot_runner.util.processes import interrupt_held, memory_limit


def test_memory_limit_ends_with_its_block():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with memory_limit(64), pytest.raises(MemoryError):
        bytearray(65 * 10**9)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_interrupt_held_raises_at_end_of_block():
    reached = []
    with pytest.raises(KeyboardInterrupt), interrupt_held():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            reached.append("the end")
        except BaseException:
            reached.append("caught inside")
    assert reached == ["the end"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_interrupt_held_leaves_an_ignored_signal_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupt_held():
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
