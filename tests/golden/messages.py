"""The messages that tests expect, in one file: ``with refuses(): ...`` passes if the block raises UserError with the
message that ``messages.json`` has for this test; ``refused(capsys, ...)``, if a command ends with it.

    python -m tests.golden.messages [pytest arguments]      records them again; read the difference before you commit
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from knot_runner.util.errors import UserError

FILE = Path(__file__).with_suffix(".json")
ROOT = Path(__file__).resolve().parents[2]
#: File to which messages are appended instead of being compared.
RECORD = "KNOT_RECORD_MESSAGES"
_TEMPORARY = re.compile(r"/[^\s'\":;,()\[\]]*?/pytest-of-[^/\s]+/pytest-\d+/(?:popen-gw\d+/)?[^/\s'\":;,()\[\]]*")
_asked: Counter[str] = Counter()
_expected: dict[str, list[str]] = {}


@contextlib.contextmanager
def refuses(kind: type[UserError] = UserError) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expect a :class:`UserError` of this ``kind`` with the recorded message."""
    with pytest.raises(kind) as problem:
        yield problem
    check(str(problem.value))


def check(message: str) -> None:
    """Compare ``message`` with the recorded one: the n-th call of a test with the n-th of its messages."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    number = _asked[test]
    _asked[test] += 1
    message = plain(message)
    if RECORD in os.environ:
        with Path(os.environ[RECORD]).open("a") as file:  # several processes append to it
            file.write(json.dumps([test, number, message]) + "\n")
        return
    if not _expected:
        _expected.update(json.loads(FILE.read_text()))
    lines = _expected.get(test, [])
    assert number < len(lines), f"no message is recorded for {test}: {message}"
    assert message == lines[number]


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> None:
    """Expect that the command of ``words`` ends with code 2 and one line, the recorded one, and leaves no result."""
    from knot_runner.cli.main import main

    capsys.readouterr()
    assert main(list(words)) == 2
    said = capsys.readouterr().err
    assert said.count("knot-runner: ") == 1 and "Traceback" not in said, said
    check(" ".join(said[said.index("knot-runner: ") :].split()))
    for out in (word.removeprefix("paths.output_dir=") for word in words if word.startswith("paths.output_dir=")):
        assert not list(Path(out).rglob("result.json"))


def plain(text: str) -> str:
    """``text`` without what differs between runs: times, digests, folders of the test, Python, the project and data."""
    text = _TEMPORARY.sub("TMP", text.replace(os.path.realpath(tempfile.gettempdir()), "/tmp"))  # it may have spaces
    text = re.sub(r"'(paths\.output_dir=TMP[^\s']*)'", r"\1", text)  # as a command quotes spaces
    text = re.sub(r"\d{8}-\d{6}-[0-9a-f]{6}", "TIME", text)
    text = re.sub(r"sha256 [0-9a-f]{12}\.\.\.", "sha256 DIGEST...", text)
    text = re.sub(r"files with [\d.]+ [KMG]?B in total", "files with SIZE in total", text)
    text = text.replace(sysconfig.get_paths()["stdlib"], "PYTHON")
    text = re.sub(r"(unknown table or figure .*) \(choose from [\w, ]+\)", r"\1 (choose from KINDS)", text)  # of papers
    text = re.sub(r"(?<=/)[0-9a-f]{12}\b", "RUN-ID", text)
    text = re.sub(r"(.)\1{50,}", r"\1\1...", text)  # cut by its length, of which the folder is a part
    data = os.environ.get("KNOT_TEST_DATA") or str(ROOT.parent / "shared" / "data")  # as tests/conftest.py
    return text.replace(data, "DATA").replace(str(ROOT), "PROJECT")


def main(arguments: list[str]) -> None:
    """Run the tests and write the messages that they met; those of tests that did not run stay."""
    with tempfile.NamedTemporaryFile(mode="r", suffix=".jsonl") as file:
        environment = {**os.environ, RECORD: file.name}
        subprocess.run([sys.executable, "-m", "pytest", "-q", *arguments], env=environment, check=False, cwd=ROOT)
        found: dict[str, dict[int, str]] = {}
        for line in file:
            test, number, said = json.loads(line)
            found.setdefault(test, {})[number] = said
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    known |= {test: [lines[number] for number in sorted(lines)] for test, lines in found.items()}
    FILE.write_text(json.dumps(dict(sorted(known.items())), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
