"""A file server in a thread that cuts answers, ignores ranges and lies, as real ones do."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Served:
    """What the server has, how it answers, and what it was asked: (path, the Range header or None)."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str | None]] = []
        #: of the next answers, in turn: bytes after which the connection is cut; None = none
        self.cuts: list[int | None] = []
        self.ranges = True
        #: Content-Range of every partial answer, in place of the true one
        self.says: str | None = None
        self.address = ""


@contextmanager
def serving() -> Iterator[Served]:
    """Within, a server at ``address``, which ends in /."""
    served = Served()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(served))
    served.address = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(served: Served) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            served.asked.append((self.path, wanted))
            content = served.files.get(self.path.lstrip("/"))
            if content is None:
                self.send_error(404)
                return
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and served.ranges else 0
            if start and start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", served.says or f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            cut = served.cuts.pop(0) if served.cuts else None
            self.wfile.write(content[start:] if cut is None else content[start : start + cut])

        def log_message(self, *_: object) -> None:
            """Not on stderr."""

    return Handler
