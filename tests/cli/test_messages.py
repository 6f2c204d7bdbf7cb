"""What the logger says reaches a terminal as bare lines, and the logger is as it was afterwards."""

import logging

from knot_runner.util.messages import LOGGER, messages_to


def test_messages_to_prefixes_warnings_and_restores_logger(caplog):
    before, said = (LOGGER.handlers, LOGGER.level, LOGGER.propagate), []
    with messages_to(said.append):
        LOGGER.info("%d of %d", 1, 2)
        LOGGER.warning("seed: is given twice")
        LOGGER.debug("not for people")
    assert said == ["1 of 2", "knot-runner: seed: is given twice"] and not caplog.messages
    assert (LOGGER.handlers, LOGGER.level, LOGGER.propagate) == before
    assert logging.getLogger("knot_runner") is LOGGER
