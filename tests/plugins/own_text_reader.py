"""A reader of texts of one's own: fastText's files, a line each: ``__label__NAME text`` (``format: fasttext``)."""

from knot_runner.config.settings.text_tasks import TEXT_READERS
from knot_runner.data.readers import read_lines
from knot_runner.util.errors import UserError

PREFIX = "__label__"


def read_fasttext(path):
    """The number of each line, and its columns ``label`` and ``text``."""
    for number, line in read_lines(path):
        label, _, text = line.strip().partition(" ")
        if not label.startswith(PREFIX):
            raise UserError(f"{path}: line {number}: does not begin with {PREFIX}NAME")
        if not line.endswith("\n"):
            raise UserError(f"{path}: line {number}: has no line end. The file may be cut short")
        yield number, {"label": label.removeprefix(PREFIX), "text": text}


TEXT_READERS["fasttext"] = read_fasttext
