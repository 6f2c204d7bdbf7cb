"""The language of guides, messages, ``--help``, YAML comments and docstrings (``scripts/check_language.py``)."""

import subprocess
import sys

from tests.golden.messages import ROOT


def findings(*names):
    command = [sys.executable, ROOT / "scripts/check_language.py", *names]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


def test_check_language_prints_place_and_finding(tmp_path):
    prose = f"\n\nA colour is\nright `is right`. {'word ' * 36}\n\n- {'word ' * 35}"
    for name, text in {"a.md": prose, "b.py": f'"""{prose}"""', "c.yaml": prose.replace("\n", "\n# ")}.items():
        (tmp_path / name).write_text(text)
    lines = [f"{tmp_path / name}:{end}" for name in ("a.md", "b.py", "c.yaml") for end in ("3: co", "3: is", "4: 36")]
    found = findings(tmp_path)
    assert found[-1] == "9 findings" and all(map(str.startswith, found, lines))


def test_language_has_no_findings():
    assert findings() == ["0 findings"]
