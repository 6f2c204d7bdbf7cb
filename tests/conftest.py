"""What all tests share: where the small real data sets are, and quiet, single-threaded libraries."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a look-up would retry for half a minute where there is no network
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder of the real data sets: ``KNOT_DATA``, or ``../shared/data`` beside the checkout."""
    root = Path(os.environ.get("KNOT_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
    if not (root / "meld").is_dir():
        pytest.skip("the real data sets are not here; KNOT_DATA=DIR says where they are")
    return root


@pytest.fixture
def offline(monkeypatch):
    """Whoever looks for another machine is found out."""

    def refuse(*where, **_):
        raise AssertionError(f"the network was asked for: {where}")

    connect = socket.socket.connect

    def local(self, address):
        return connect(self, address) if self.family == socket.AF_UNIX else refuse(address)

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", local)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
