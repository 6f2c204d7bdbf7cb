"""Setup of the fork server, the process that forks all child processes. The server imports this module first.

The setup makes the server ignore Ctrl-C, and end when its parent process ends.
"""

import atexit
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path
from types import SimpleNamespace


def _end_without_parent(*_: object) -> None:
    with contextlib.suppress(PermissionError):  # process 1: the parent died before this import
        if _parent.exists():
            return
    _socket.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # the folder may also have the socket of another server
        _socket.parent.rmdir()
    os._exit(1)


def _listening() -> Path:
    """Return the path of the socket on which this process listens."""
    for path in sorted(Path("/proc/self/fd").iterdir()):
        if not path.is_socket():
            continue
        with socket.socket(fileno=os.dup(int(path.name))) as server:
            if server.family == socket.AF_UNIX and server.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return Path(server.getsockname())
    raise RuntimeError("no socket to listen on: this module is for fork servers alone")


_parent = Path(f"/proc/{os.getppid()}/exe")  # does not exist for a zombie
_socket = _listening()
signal.signal(signal.SIGINT, signal.SIG_IGN)
atexit.register(_end_without_parent)
sys.meta_path.insert(0, SimpleNamespace(find_spec=_end_without_parent))  # called before each import
