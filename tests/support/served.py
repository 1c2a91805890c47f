"""A server of this process that answers HTTP as a test says."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@contextmanager
def served(answers: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The endpoint of a server with these answers."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), answers)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
