"""Signals while libraries work that catch every exception."""

import os
import signal
import time

import pytest

from knot_runner.util.processes import interrupt_held


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
