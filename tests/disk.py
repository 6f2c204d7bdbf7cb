"""A disk on which any one call fails: counts what changes files below a folder, and lets the n-th such call go wrong. A
call is an open, a write, fsync, rename, unlink, mkdir, truncate or flock. After a ``kill`` nothing below the folder
changes any more, whatever the code still tries on its way out, as for a process that is dead."""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
import time
from pathlib import Path

#: Ways to fail: the process dies before the call; in the midst of a write; the disk is full; the disk is broken.
WAYS = ("kill", "torn", "ENOSPC", "EIO")
#: Calls on open files, whose errors name none.
BY_NUMBER = ("write", "fsync", "flock")
CALLS = ("mkdir", "replace", "rename", "unlink", "rmdir", "truncate", "link")


class Killed(BaseException):
    """What stands for kill -9."""


def damage_in_place(path):
    """Change a byte of a file that keeps its size, its inode and its time of change."""
    stat, content = path.stat(), path.read_bytes()
    time.sleep(0.02)  # so that the kernel's clock has gone on
    path.write_bytes(content[:-3] + bytes([content[-3] ^ 2]) + content[-2:])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


class Disk:
    """Use as a context manager. ``at``: number of the call that fails; or (name, end of the path). ``calls``: (name,
    path below the folder) of every call so far."""

    def __init__(self, root, at=-1, way="kill"):
        self.root, self.at, self.way = str(Path(root).resolve()), at, way
        self.calls, self.dead = [], False
        self._real = {}

    def __enter__(self):
        self._real = {(os, name): getattr(os, name) for name in (*CALLS, "fsync", "open")}
        self._real |= {(io, "open"): io.open, (builtins, "open"): builtins.open, (fcntl, "flock"): fcntl.flock}
        for name in CALLS:
            setattr(os, name, self._named(name, self._real[os, name]))
        os.open = self._os_open
        os.fsync, fcntl.flock = self._of_file("fsync", os.fsync), self._of_file("flock", fcntl.flock)
        io.open = builtins.open = self._open
        return self

    def __exit__(self, *_):
        for (module, name), real in self._real.items():
            setattr(module, name, real)

    def ours(self, path):
        """The path from the folder on; None of files elsewhere."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")  # noqa: PTH115
        text = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 (no call of ours)
        return text[len(self.root) :] if text == self.root or text.startswith(self.root + "/") else None

    def call(self, name, path, half=lambda: None):
        """Count one call, and let it fail if it is its turn; ``half``: what a torn write leaves."""
        if self.dead:
            raise Killed
        self.calls.append((name, path))
        if not self._fails(name, path):
            return
        if self.way == "kill":
            self.dead = True
            raise Killed
        half()
        if self.way == "torn":
            self.dead = True
            raise Killed
        number = getattr(errno, self.way)
        place = [] if name in BY_NUMBER else [self.root + path]
        raise OSError(number, os.strerror(number), *place)

    def _fails(self, name, path):
        if isinstance(self.at, int):
            return len(self.calls) - 1 == self.at
        return name == self.at[0] and path.endswith(self.at[1])

    def _named(self, name, real):
        def call(path, *more, **named):
            if (own := self.ours(path)) is not None:
                self.call(name, own)
            return real(path, *more, **named)

        return call

    def _of_file(self, name, real):
        def call(handle, *more):
            number = handle if isinstance(handle, int) else handle.fileno()
            if (own := self.ours(number)) is not None:
                self.call(name, own)
            return real(handle, *more)

        return call

    def _os_open(self, path, flags, *more, **named):
        if (own := self.ours(path)) is not None:
            self.call("open" if flags & (os.O_WRONLY | os.O_RDWR) else "read", own)
        return self._real[os, "open"](path, flags, *more, **named)

    def _open(self, path, mode="r", *more, **named):
        writes = set(mode) & set("wax+")
        own = None if isinstance(path, int) else self.ours(path)
        if own is not None:
            self.call("open" if writes else "read", own)
        file = self._real[io, "open"](path, mode, *more, **named)
        return File(self, own, file) if writes and own is not None else file


class File:
    """A file open for writing; nothing waits in a buffer."""

    def __init__(self, disk, own, real):
        self._disk, self._own, self._real = disk, own, real

    def __getattr__(self, name):
        return getattr(self._real, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._real.close()

    def write(self, data):
        def half():
            self._real.write(data[: len(data) // 2])
            self._real.flush()

        self._disk.call("write", self._own, half)
        count = self._real.write(data)
        self._real.flush()
        return count

    def truncate(self, size):
        self._disk.call("truncate", self._own)
        return self._real.truncate(size)


class ReadOnly(Disk):
    """Every call that changes a file is refused, also of root."""

    def call(self, name, path, half=None):
        if name in ("read", "flock"):
            return
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), self.root + path)
