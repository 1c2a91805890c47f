"""A server in front of an S3 server, whose rule decides what becomes of each request: a race or a fault in it."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"
HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "expect", "date", "server"})
PATIENCE_SECONDS = 30


class Fault(StrEnum):
    """REFUSED: answered by the proxy, the server never sees it. FAILED: the server did it, the answer says 500.

    CUT: the server did it, and the connection ends without an answer. UNCONDITIONAL: sent on without If-None-Match.
    """

    REFUSED = "refused"
    FAILED = "failed"
    CUT = "cut"
    UNCONDITIONAL = "unconditional"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    path: str
    query: str
    conditional: bool

    @property
    def is_delta_commit(self) -> bool:
        return self.method == "PUT" and "/_delta_log/0" in self.path and self.path.endswith(".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`status` and `code` are what REFUSED and FAILED answer."""

    fault: Fault
    status: int = 500
    code: str = "InternalError"


Rule = Callable[[Request], Verdict | None]


@dataclass(slots=True)
class FaultyServer:
    """`rule` is asked about every request, by several threads; None lets it pass."""

    endpoint: str
    rule: Rule = field(default=lambda _: None)
    seen: list[Request] = field(default_factory=list)
    faults: list[Request] = field(default_factory=list)


@contextmanager
def faulty(upstream: str) -> Iterator[FaultyServer]:
    """A server that sends everything on to `upstream` until it is given a rule."""
    with _Listener(urlsplit(upstream).netloc) as listener:
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield listener.described
        finally:
            listener.shutdown()
            thread.join()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__((LOOPBACK, 0), _Handler)
        self.upstream = upstream
        self.described = FaultyServer(endpoint=f"http://{LOOPBACK}:{self.server_address[1]}")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE_SECONDS
    disable_nagle_algorithm = True
    server: _Listener

    def __getattr__(self, name: str) -> Callable[[], None]:
        """One way for every method, which the base looks up as do_GET and so on."""
        if name.startswith("do_"):
            return self._take
        raise AttributeError(name)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""

    def _take(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts, conditional = urlsplit(self.path), "If-None-Match" in self.headers
        request = Request(method=self.command, path=parts.path, query=parts.query, conditional=conditional)
        described = self.server.described
        described.seen.append(request)
        verdict = described.rule(request)
        if verdict is None:
            self._answer(*self._forward(body))
            return
        described.faults.append(request)
        self._fail(verdict, body)

    def _fail(self, verdict: Verdict, body: bytes) -> None:
        if verdict.fault is Fault.UNCONDITIONAL:
            self._answer(*self._forward(body, without="if-none-match"))
            return
        if verdict.fault is not Fault.REFUSED:
            self._forward(body)
        if verdict.fault is Fault.CUT:
            self.close_connection = True
        else:
            self._answer(verdict.status, [("Content-Type", "application/xml")], _error(verdict.code))

    def _forward(self, body: bytes, without: str = "") -> tuple[int, list[tuple[str, str]], bytes]:
        with closing(http.client.HTTPConnection(self.server.upstream, timeout=PATIENCE_SECONDS)) as connection:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in HOP_BY_HOP | {without}:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        length = str(len(body))
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
            elif name.lower() == "content-length" and self.command == "HEAD":
                length = value
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _error(code: str) -> bytes:
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>by the proxy</Message></Error>'.encode()
