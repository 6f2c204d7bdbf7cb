"""Plug-ins of the user's own, imported once, also when several runs are threads of one program."""

import sys
import threading
import types

from knot_runner.config.plugins import load_plugins

SLOW = """
import time

import plugin_state

plugin_state.times += 1
time.sleep(0.3)
plugin_state.ready = True
"""


def test_no_thread_goes_on_before_the_plugin_is_whole(tmp_path, monkeypatch):
    state = types.ModuleType("plugin_state")
    state.times, state.ready = 0, False
    monkeypatch.setitem(sys.modules, "plugin_state", state)
    path = tmp_path / "slow_plugin.py"
    path.write_text(SLOW)
    seen = []

    def run():
        load_plugins([str(path)])
        seen.append(state.ready)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 4 and state.times == 1
