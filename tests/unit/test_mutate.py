"""The listed mutants, which ``scripts/mutate.py`` applies."""

from pathlib import Path

import pytest

from tests.of_papers import WORDS

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.paper(paper) for paper in WORDS]  # the lists name files of all papers


@pytest.mark.parametrize("area", [path.stem for path in (ROOT / "tests" / "mutations").glob("*.yaml")])
def test_listed_mutants_can_be_applied_and_have_tests(area, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import mutate

    for mutant in mutate.named(area):
        assert mutant.text != (ROOT / mutant.file).read_text(), mutant.name
        tests = [test.partition("::") for test in mutant.tests if test.startswith("tests/")]
        assert tests, mutant.name
        for path, _, name in tests:
            assert not name or f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(), f"{path}::{name}"
            assert (ROOT / path).exists(), path
