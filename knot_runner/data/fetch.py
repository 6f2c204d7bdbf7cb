"""Downloads of data files.

Each downloaded file is checked against its published size and digest. An interrupted download leaves a file
``NAME.part``, from which the next command resumes.
"""

from __future__ import annotations

import http.client
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from knot_runner.data.sources import DataFile
from knot_runner.util.errors import UserError
from knot_runner.util.files import locked, refused, sha256, sync_folder
from knot_runner.util.shared_memory import size_text

#: seconds without a byte after which a download fails
TIMEOUT = 30.0
CHUNK = 1 << 18
LOCKS = ".locks"
PART = ".part"
#: State of a local file compared with the published file. ``unknown``: the file exists, but no size or digest is
#: published.
FileState = Literal["absent", "same", "unknown", "other"]
#: States of files that are not downloaded.
THERE = ("same", "unknown")
#: Function called after every chunk with the number of received bytes and the file size (0 if unknown).
Told = Callable[[int, int], None]


class FetchError(UserError):
    """A download failed."""

    exit_code = 1


def file_state(path: Path, file: DataFile, look_inside: bool = True) -> FileState:
    """Return the state of the local file ``path``, compared with the published ``file``.

    The sizes are compared. If ``look_inside`` is true, the digests are also compared.
    """
    if not path.exists():
        return "absent"
    if not path.is_file() or (file.size is None and file.sha256 is None):
        return "unknown"
    return "other" if wrong_content(path, file, look_inside) else "same"


def wrong_content(path: Path, file: DataFile, look_inside: bool = True) -> str:
    """Return a text that states how the file ``path`` differs from the published ``file``; "" if the files are equal.

    The sizes are compared. If ``look_inside`` is true, the digests are also compared.
    """
    size = path.stat().st_size
    if file.size not in (None, size):
        return f"{size} bytes, but the published file has {file.size}"
    if file.sha256 is None or not look_inside:
        return ""
    digest = sha256(path)
    if digest == file.sha256:
        return ""
    return f"sha256 {digest[:12]}..., but the published file has {file.sha256[:12]}..."


def place_of(root: Path, file: DataFile) -> Path:
    """Return the path of ``file`` below ``root``.

    Raises:
        UserError: A symbolic link on the path leads out of ``root``.
    """
    path = root / file.path
    if not path.parent.resolve().is_relative_to(root.resolve()):
        raise UserError("a link points outside paths.data_dir. Files are written only below paths.data_dir", path)
    return path


def fetch_file(root: Path, file: DataFile, addresses: list[str], progress: Told = lambda *_: None) -> bool:
    """Download ``file`` to its path below ``root`` if nothing exists there. Return whether the file was downloaded.

    If several processes need the same file, one process downloads it, and the other processes wait.

    Args:
        root: The folder of data files.
        file: The published file.
        addresses: URLs of the file. They are tried in order.
        progress: Function that shows the progress.

    Raises:
        FetchError: No address serves the file, or the existing file differs from ``file``.
        UserError: The file cannot be written.
    """
    target = place_of(root, file)
    if file_state(target, file) in THERE:
        return False
    with locked(root / LOCKS / file.path.replace("/", "_")):
        state = file_state(target, file)
        if state in THERE:
            return False
        if state == "other":
            raise FetchError(
                f"differs from the published file ({wrong_content(target, file)}). "
                "To download the published file, move the existing file away",
                target,
            )
        part = target.with_name(target.name + PART)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _download(part, file, addresses, progress)
            with part.open("rb") as content:
                os.fsync(content.fileno())
            part.replace(target)
            sync_folder(target.parent)
        except OSError as problem:  # a disk failure; network failures raise FetchError
            raise refused(part, problem, file.size or 0) from None
    return True


def _download(part: Path, file: DataFile, addresses: list[str], progress: Told) -> None:
    """Download the published ``file`` to ``part``, from the first address that serves the file.

    Raises :class:`FetchError` with the problem of each address. A download with the wrong content is deleted.
    """
    problems = []
    for address in addresses:
        before = part.stat().st_size if part.exists() else 0
        problem = ""
        if file.size is None or before < file.size:
            problem = _receive(address, part, before, file, progress)
        if not problem and (problem := wrong_content(part, file)):
            part.unlink()
        if not problem:
            return
        problems.append(f"{address}: {problem}")
    raise FetchError(f"{'; '.join(problems)}. Repeat the command to try again")


def _receive(address: str, part: Path, before: int, file: DataFile, progress: Told) -> str:
    """Append the response to ``part``, or overwrite ``part`` if the server sends the whole file.

    ``before``: the number of bytes already in ``part``. Return the problem, or "" if the file is complete.
    """
    request = urllib.request.Request(address, headers={"User-Agent": "knot-runner"})
    if before:
        request.add_header("Range", f"bytes={before}-")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            mode = "wb"
            received = 0
            end = 0
            if answer.status == http.client.PARTIAL_CONTENT:
                mode = "ab"
                received = before
                if not answer.headers.get("Content-Range", "").startswith(f"bytes {before}-"):
                    return "the server sent a part of the file that was not requested"
            if length := answer.headers.get("Content-Length"):
                end = received + int(length)
            with part.open(mode) as content:
                while chunk := answer.read(CHUNK):
                    content.write(chunk)
                    received += len(chunk)
                    if file.size is not None and received > file.size:
                        return ""  # the caller compares the sizes
                    progress(received, file.size or end)
    except urllib.error.HTTPError as problem:
        if problem.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.unlink()
        return f"the server answered {problem.code} {problem.reason}"
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError) as problem:
        return " ".join(str(getattr(problem, "reason", problem)).split()) or type(problem).__name__
    if received >= end:
        return ""
    return f"the download ended early, after {size_text(received)}"
