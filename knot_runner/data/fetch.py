"""Downloads of data files: resumed after an interruption, checked against published size and digests, then renamed.

A file gets its name only when complete; until then it is ``NAME.part``, from which the next command resumes.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from knot_runner.data.sources import DataFile
from knot_runner.util.errors import UserError
from knot_runner.util.files import locked, refused, sync_folder
from knot_runner.util.memory import size_text

#: seconds without a byte after which a server is given up
TIMEOUT = 30.0
#: times in a row that a server may end an answer early, as long as each brings something
MAX_CUTS = 20
CHUNK = 1 << 18
LOCKS = ".locks"
PART = ".part"
#: how a file below ``paths.data`` compares with the published one; unknown: it is there, and nothing to compare with
FileState = Literal["absent", "same", "unknown", "shorter", "other"]
#: of these, what is not downloaded
THERE = ("same", "unknown")
#: told of every chunk: (bytes that are there, bytes of the whole file or 0)
Told = Callable[[int, int], None]


class FetchError(UserError):
    """A failed download: not an error of the input; the same command resumes it."""

    exit_code = 1


def file_state(path: Path, file: DataFile, look_inside: bool = True) -> FileState:
    """Compare ``path`` with the published ``file``: its size and, with ``look_inside``, its digests."""
    if not path.exists():
        return "absent"
    if not path.is_file() or (file.size is None and not file.digests):
        return "unknown"
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return "shorter" if size < file.size else "other"
    if not look_inside or not file.digests:
        return "same" if file.size is not None else "unknown"
    return "other" if wrong_digest(path, file) else "same"


def wrong_digest(path: Path, file: DataFile) -> str:
    """Returns a message on the first digest of ``path`` that differs from the published one; "" where none does."""
    for name, digest in file.digests.items():
        with path.open("rb") as content:
            found = hashlib.file_digest(content, name).hexdigest()
        if found != digest:
            return f"{name} {found[:12]}..., published is {digest[:12]}..."
    return ""


def place_of(root: Path, file: DataFile) -> Path:
    """The path of ``file`` below ``root``. Raises :class:`UserError` where a link leads out of it."""
    path = root / file.path
    if not path.parent.resolve().is_relative_to(root.resolve()):
        raise UserError(f"{path}: a link leads it out of paths.data, where nothing is written")
    return path


def fetch_file(root: Path, file: DataFile, addresses: list[str], progress: Told = lambda *_: None) -> bool:
    """Download ``file`` to its place below ``root`` unless it is there. Returns whether it was downloaded.

    A second process waits for the first and finds its file. An existing file that is the beginning of the published one
    is completed; a different file is not touched. Raises :class:`FetchError` and other :class:`UserError`, in one line.
    """
    target = place_of(root, file)
    if file_state(target, file) in THERE:
        return False
    with locked(root / LOCKS / file.path.replace("/", "_")):
        state = file_state(target, file)
        if state in THERE:
            return False
        if state == "other":
            raise FetchError(_is_another(target, file))
        part = target.with_name(target.name + PART)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if state == "shorter" and not part.exists():
                shutil.copyfile(target, part)
            _fill(part, file, addresses, progress)
            if state == "shorter" and not _begins_with(part, target):
                part.unlink()
                raise FetchError(_is_another(target, file))
            _put_in_place(part, target)
        except OSError as problem:  # of the disk: those of the network are FetchErrors
            raise refused(part, problem, file.size or 0) from None
    return True


def _is_another(target: Path, file: DataFile) -> str:
    has = size_text(target.stat().st_size)
    wanted = f"the published one has {size_text(file.size)}" if file.size else "its digest is not the published one"
    return (
        f"{target}: is another file than the published one ({has}; {wanted}) and is left as it is; "
        "moving it away makes room"
    )


def _begins_with(path: Path, beginning: Path) -> bool:
    with path.open("rb") as whole, beginning.open("rb") as first:
        return all(whole.read(len(chunk)) == chunk for chunk in iter(lambda: first.read(CHUNK), b""))


def _put_in_place(part: Path, target: Path) -> None:
    with part.open("rb") as content:
        os.fsync(content.fileno())
    part.replace(target)
    sync_folder(target.parent)


def _fill(part: Path, file: DataFile, addresses: list[str], progress: Told) -> None:
    """Make ``part`` the published file, from the first address that serves it. Raises :class:`FetchError` with what
    was wrong with each."""
    problems = []
    for address in addresses:
        problem = _from_one(address, part, file, progress)
        if not problem:
            return
        problems.append(f"{address}: {problem}")
    raise FetchError(f"{'; '.join(problems)}; the same command tries again")


def _from_one(address: str, part: Path, file: DataFile, progress: Told) -> str:
    """Downloads from ``address``; returns the problem, or "" where ``part`` is now the published file.

    Wrong content is removed; if the download was a resumed one, it is repeated once from the first byte.
    """
    for resumed in (part.exists(), False):
        try:
            _stream(address, part, file, progress)
        except FetchError as problem:
            return str(problem)
        wrong = _wrong_content(part, file)
        if not wrong:
            return ""
        part.unlink()
        if not resumed:
            break
    return wrong


def _wrong_content(part: Path, file: DataFile) -> str:
    size = part.stat().st_size
    if file.size is not None and size != file.size:
        return f"sends {size} bytes, published are {file.size}"
    return wrong_digest(part, file)


def _stream(address: str, part: Path, file: DataFile, progress: Told) -> None:
    """Append to ``part`` until the server has sent all. Raises :class:`FetchError` where it does not."""
    cuts = 0
    while True:
        before = _size(part)
        if file.size is not None and before >= file.size:
            return
        try:
            if _answer(address, part, before, file, progress):
                return
            cause = "ends early"
        except urllib.error.HTTPError as problem:
            if problem.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and before:
                part.unlink()
                continue
            raise FetchError(f"answers {problem.code} {problem.reason}") from None
        except urllib.error.URLError as problem:
            cause = " ".join(str(problem.reason).split())
        except (http.client.HTTPException, TimeoutError, ConnectionError) as problem:
            cause = " ".join(str(problem).split()) or type(problem).__name__
        cuts = cuts + 1 if _size(part) > before else MAX_CUTS
        if cuts >= MAX_CUTS:
            raise FetchError(f"{cause}, after {size_text(_size(part))}")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _answer(address: str, part: Path, before: int, file: DataFile, progress: Told) -> bool:
    """Appends one response to the existing ``before`` bytes, or replaces them if the server sends the whole file.
    Returns whether the response was complete."""
    headers = {"User-Agent": "knot-runner", **({"Range": f"bytes={before}-"} if before else {})}
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=TIMEOUT) as answer:
        goes_on = answer.status == http.client.PARTIAL_CONTENT
        if goes_on and not answer.headers.get("Content-Range", "").startswith(f"bytes {before}-"):
            raise FetchError("answers with another part of the file than was asked for")
        there = before if goes_on else 0
        length = answer.headers.get("Content-Length")
        end = there + int(length) if length else None
        with part.open("ab" if goes_on else "wb") as content:
            for chunk in _chunks(answer):
                content.write(chunk)
                there += len(chunk)
                if file.size is not None and there > file.size:
                    break  # which the comparison of sizes refuses
                progress(there, file.size or end or 0)
    return end is None or there >= end


def _chunks(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yields the response's data; network failures raise ConnectionError, unlike those of the disk."""
    while True:
        try:
            chunk = answer.read(CHUNK)
        except OSError as problem:
            raise ConnectionError(problem.strerror or str(problem)) from None
        if not chunk:
            return
        yield chunk
