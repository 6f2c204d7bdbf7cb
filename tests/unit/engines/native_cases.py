"""The native engine in tests: which machines have a compiler for it."""

from __future__ import annotations

import pytest

from knot_runner.engines.native.library import find_compiler
from knot_runner.util.errors import UserError


def _has_compiler() -> bool:
    try:
        find_compiler()
    except UserError:
        return False
    return True


needs_compiler = pytest.mark.skipif(not _has_compiler(), reason="the native engine needs a C++ compiler")
