"""What the logger says reaches a terminal as bare lines, and the logger is as it was afterwards."""

import logging

from knot_runner.cli.main import main
from knot_runner.util.messages import LOGGER, messages_to
from tests.tiny import TINY_IMAGES


def test_messages_are_bare_lines_and_warnings_begin_with_our_name(caplog):
    before, said = (LOGGER.handlers, LOGGER.level, LOGGER.propagate), []
    with messages_to(said.append):
        LOGGER.info("%d of %d", 1, 2)
        LOGGER.warning("seed: is given twice")
        LOGGER.debug("not for people")
    assert said == ["1 of 2", "knot-runner: seed: is given twice"] and not caplog.messages
    assert (LOGGER.handlers, LOGGER.level, LOGGER.propagate) == before
    assert logging.getLogger("knot_runner") is LOGGER


def test_the_command_prints_what_composing_says(tmp_path, capsys):
    assert main(["check", *TINY_IMAGES, "seed=1", "seed=2", f"paths.out={tmp_path}", "--quick"]) == 0
    assert capsys.readouterr().err == "knot-runner: seed: is given twice, 1 and 2; the last one, 2, counts\n"
