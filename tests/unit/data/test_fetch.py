"""Downloads from a server that cuts, lies and refuses: what lies under a file's name is whole, or was there before."""

import hashlib
import os
import random
import socket
import threading

import pytest

from knot_runner.data import fetch
from knot_runner.data.fetch import FetchError, fetch_file, file_state
from knot_runner.data.sources import DataFile
from knot_runner.util.errors import DiskError
from tests.file_server import serving
from tests.golden.messages import refuses

CONTENT = random.Random(0).randbytes(1_000_003)
FILE = DataFile("set/a.bin", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
HALF = 500_000


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as served:
        served.files["a.bin"] = CONTENT
        yield served


def get(root, server, file=FILE):
    return fetch_file(root, file, [server.address + "a.bin"])


def names(root):
    return sorted(path.name for path in (root / "set").iterdir()) if (root / "set").exists() else []


def test_fetch_file_syncs_before_renaming(tmp_path, server, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append((os.fstat(handle).st_size, names(tmp_path))))
    get(tmp_path, server)
    assert synced[0] == (len(CONTENT), ["a.bin.part"]) and synced[1][1] == ["a.bin"]


def part(root, content):
    (root / "set").mkdir(exist_ok=True)
    (root / "set/a.bin.part").write_bytes(content)


@pytest.mark.parametrize("ranges", [True, False])
def test_fetch_file_resumes_or_restarts_partial_download(tmp_path, server, ranges):
    part(tmp_path, CONTENT[:HALF])
    server.ranges = ranges
    told = []
    fetch_file(tmp_path, FILE, [server.address + "a.bin"], lambda done, total: told.append((done, total)))
    assert server.asked == [("/a.bin", f"bytes={HALF}-")] and (tmp_path / "set/a.bin").read_bytes() == CONTENT
    assert (told[0][0] > HALF) == ranges and told[-1] == (len(CONTENT), len(CONTENT))


def test_fetch_file_resumes_after_a_cut(tmp_path, server):
    server.cuts = [HALF]
    with pytest.raises(FetchError, match=r"a\.bin: the download ended early, after 500\.0 KB. Repeat the command"):
        get(tmp_path, server)
    assert names(tmp_path) == ["a.bin.part"] and (tmp_path / "set/a.bin.part").stat().st_size == HALF
    assert get(tmp_path, server)
    assert (tmp_path / "set/a.bin").read_bytes() == CONTENT
    assert [wanted for _, wanted in server.asked] == [None, f"bytes={HALF}-"]


ANY = DataFile("set/a.bin", sha256=FILE.sha256)
#: What was downloaded, the file, what the server says of its range, the error, and whether the part stays.
PARTS = {
    "another range": (CONTENT[:HALF], FILE, "bytes 7-9/10", "a part of the file that was not requested", True),
    "other content": (b"x" * HALF, FILE, None, "Repeat the command to try again", False),
    "too long": (CONTENT + b"too long", FILE, None, "Repeat the command to try again", False),
    "as long": (b"x" * len(CONTENT), FILE, None, "Repeat the command to try again", False),
    "whole of unknown size": (CONTENT, ANY, None, "answered 416", False),
}


@pytest.mark.parametrize("name", PARTS)
def test_fetch_file_refuses_unfit_parts_once(tmp_path, server, name):
    content, file, server.says, error, stays = PARTS[name]
    part(tmp_path, content)
    with pytest.raises(FetchError, match=error):
        get(tmp_path, server, file)
    assert names(tmp_path) == (["a.bin.part"] if stays else [])
    server.says = None
    assert get(tmp_path, server, file) and (tmp_path / "set/a.bin").read_bytes() == CONTENT


@pytest.mark.parametrize(("file", "said"), [
    (DataFile("set/a.bin", len(CONTENT), "0" * 64), "sha256 "),
    (DataFile("set/a.bin", len(CONTENT) + 1, FILE.sha256), f"{len(CONTENT)} bytes, but"),
    (DataFile("set/a.bin", 1000, FILE.sha256), "the published file has 1000"),
])  # fmt: skip
def test_fetch_file_refuses_wrong_content(tmp_path, server, file, said):
    with pytest.raises(FetchError, match=said) as caught:
        get(tmp_path, server, file)
    assert "\n" not in str(caught.value) and caught.value.exit_code == 1
    assert names(tmp_path) == []


def test_fetch_file_tries_the_next_address(tmp_path, server):
    server.files["bad"] = CONTENT[::-1]
    addresses = [server.address + name for name in ("gone", "bad", "a.bin")]
    assert fetch_file(tmp_path, FILE, addresses)
    with pytest.raises(FetchError, match="gone: the server answered 404 .*bad: sha256 .*. Repeat the command"):
        fetch_file(tmp_path / "other", FILE, addresses[:2])
    assert not (tmp_path / "other/set/a.bin").exists()


def test_fetch_file_gives_up_a_silent_server(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(fetch, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(FetchError, match="timed out"):
        fetch_file(tmp_path, FILE, [f"http://127.0.0.1:{silent.getsockname()[1]}/a.bin"])


@pytest.mark.parametrize("size", [1000, len(CONTENT), len(CONTENT) + 5])
def test_fetch_file_leaves_different_files_untouched(tmp_path, server, size):
    """A user's own data under the name, shorter, as long, or longer: neither lost nor mixed."""
    (tmp_path / "set").mkdir()
    (tmp_path / "set/a.bin").write_bytes(b"x" * size)
    with pytest.raises(FetchError, match="differs from the published file .*. To download the published file, move"):
        get(tmp_path, server)
    assert (tmp_path / "set/a.bin").read_bytes() == b"x" * size and names(tmp_path) == ["a.bin"]
    assert server.asked == []


def test_fetch_file_accepts_any_file_if_unpublished(tmp_path, server):
    (tmp_path / "set").mkdir()
    (tmp_path / "set/a.bin").write_bytes(b"x")
    assert not get(tmp_path, server, DataFile("set/a.bin"))
    assert file_state(tmp_path / "set/a.bin", DataFile("set/a.bin", 1)) == "same" and server.asked == []


def test_fetch_file_downloads_once_for_two_processes(tmp_path, server, monkeypatch):
    """All have seen that the file is not there before the first begins."""
    actual, looked, all_looked = [], threading.local(), threading.Barrier(4)

    def state_seen_by_all(*where):
        state = file_state(*where)
        if not hasattr(looked, "once"):
            looked.once = all_looked.wait(10)
        return state

    monkeypatch.setattr(fetch, "file_state", state_seen_by_all)
    threads = [threading.Thread(target=lambda: actual.append(get(tmp_path, server))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(actual) == [False, False, False, True] and server.asked == [("/a.bin", None)]
    assert (tmp_path / "set/a.bin").read_bytes() == CONTENT and names(tmp_path) == ["a.bin"]


def test_fetch_file_reports_a_full_disk(tmp_path, server, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetch.os, "fsync", full)
    with pytest.raises(DiskError, match=r"set/a\.bin\.part: disk full: has") as caught:
        get(tmp_path, server)
    assert caught.value.exit_code == 1 and names(tmp_path) == ["a.bin.part"]


def test_fetch_file_writes_nothing_outside(tmp_path, server):
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data/set").symlink_to(outside)
    with refuses():
        get(tmp_path / "data", server)
    assert not list(outside.iterdir()) and server.asked == []
