"""``scripts/check_language.py``: guides, messages, --help, YAML comments and docstrings read plainly."""

from __future__ import annotations

import subprocess
import sys

from tests.golden.messages import ROOT

PARTS = ["bundles", "cli", "composing", "config", "data", "models", "provenance", "results", "sweeps", "testing", "transport", "util"]
BAD = "One colour.\nThe file is\nnot there; null is right.\n\n- " + "word " * 36 + "\n- " + "word " * 35 + "`is right`\n"


def check(*names: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "check_language.py"), *map(str, names)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_check_language_names_line_and_phrase(tmp_path):
    for name in ("a.md", "b.py", "c.yaml", "d.json"):
        ...


def test_language_has_no_findings():
    done = check()
    assert (done.returncode, done.stdout) == (0, "0 findings\n")
