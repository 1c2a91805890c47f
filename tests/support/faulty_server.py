"""A server in front of an S3 server, whose rule decides what becomes of each request: a race or a fault in it."""

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

LOOPBACK = "127.0.0.1"
HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "expect", "date", "server"})
TIMEOUT_SECONDS = 60
CODES = {500: "InternalError", 503: "SlowDown", 412: "PreconditionFailed", 409: "ConditionalRequestConflict"}


class Call(StrEnum):
    """What a request asks of S3."""

    PUT = "put"
    GET = "get"
    HEAD = "head"
    LIST = "list"
    DELETE = "delete"
    BEGIN_PARTS = "begin parts"
    PUT_PART = "put a part"
    COMPLETE_PARTS = "complete parts"
    ABORT_PARTS = "abort parts"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    path: str
    query: str
    conditional: bool

    @property
    def is_delta_commit(self) -> bool:
        return self.method == "PUT" and "/_delta_log/0" in self.path and self.path.endswith(".json")

    @property
    def call(self) -> Call:
        asked = set(parse_qs(self.query, keep_blank_values=True))
        if "uploadId" in asked:
            of_parts = {"PUT": Call.PUT_PART, "POST": Call.COMPLETE_PARTS, "DELETE": Call.ABORT_PARTS}
            return of_parts.get(self.method, Call.OTHER)
        if self.method == "POST":
            return Call.BEGIN_PARTS if "uploads" in asked else Call.DELETE if "delete" in asked else Call.OTHER
        is_object = "/" in self.path.strip("/")
        if self.method == "GET" and not is_object:
            return Call.LIST
        plain = {"PUT": Call.PUT, "GET": Call.GET, "HEAD": Call.HEAD, "DELETE": Call.DELETE}
        return plain.get(self.method, Call.OTHER) if is_object else Call.OTHER


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`acts`: the server has done it, and its answer is lost. Without a `status` the connection ends unanswered.

    `is_unconditional`: sent on without If-None-Match, and answered as the server answers that. `keeps`: a
    delete of many is answered with success, and with the code for each of them, which stays.
    """

    name: str
    status: int | None = None
    code: str = ""
    acts: bool = False
    holds_seconds: float = 0
    is_unconditional: bool = False
    keeps: bool = False


INTERNAL, SLOW_DOWN = Fault(name="500", status=500), Fault(name="503", status=503)
PRECONDITION, CONFLICT = Fault(name="412", status=412), Fault(name="409", status=409)
RESET = Fault(name="connection reset")
ACTED_AND_CUT = Fault(name="done, answer cut off", acts=True)
ACTED_AND_500 = Fault(name="done, answered 500", acts=True, status=500)
ACTED_AND_503 = Fault(name="done, answered 503", acts=True, status=503)
UNCONDITIONAL = Fault(name="without the condition", is_unconditional=True)
KEEPS = Fault(name="keeps all of many", status=200, code="InternalError", keeps=True)
PASSING = (INTERNAL, SLOW_DOWN, RESET, ACTED_AND_CUT, ACTED_AND_500, ACTED_AND_503)
"""What any call must survive, whatever it asks for."""


def refused(status: int, code: str) -> Fault:
    return Fault(name=str(status), status=status, code=code)


NO_ROOM = refused(507, "XMinioStorageFull")
"""As a full MinIO says it."""


def no_answer(seconds: float) -> Fault:
    """Longer than the caller waits."""
    return Fault(name="no answer in time", holds_seconds=seconds)


Rule = Callable[[Request], Fault | None]


@dataclass(slots=True)
class FaultyServer:
    """`rule` is asked about every request, by several threads; None lets it pass."""

    endpoint: str
    rule: Rule = field(default=lambda _: None)
    seen: list[Request] = field(default_factory=list)
    faults: list[Request] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)


@contextmanager
def faulty(upstream: str) -> Iterator[FaultyServer]:
    """A server that sends everything on to `upstream` until it is given a rule."""
    with _Listener(urlsplit(upstream).netloc) as listener:
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield listener.described
        finally:
            listener.described.closing.set()
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
    disable_nagle_algorithm = True
    server: _Listener

    def __getattr__(self, name: str) -> Callable[[], None]:
        """One way for every method, which the base looks up as do_GET and so on."""
        if name.startswith("do_"):
            return self._take
        raise AttributeError(name)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""

    def handle(self) -> None:
        """A caller that has hung up meanwhile is nobody's fault."""
        with suppress(ConnectionError):
            super().handle()

    def _take(self) -> None:
        body = self._body()
        parts, conditional = urlsplit(self.path), "If-None-Match" in self.headers
        request = Request(method=self.command, path=parts.path, query=parts.query, conditional=conditional)
        described = self.server.described
        described.seen.append(request)
        fault = described.rule(request)
        if fault is None:
            self._answer(*self._forward(body))
            return
        described.faults.append(request)
        self._fail(fault, body)

    def _fail(self, fault: Fault, body: bytes) -> None:
        if fault.is_unconditional:
            self._answer(*self._forward(body, without="if-none-match"))
            return
        if fault.acts:
            self._forward(body)
        if fault.holds_seconds:
            self.server.described.closing.wait(fault.holds_seconds)
        if fault.status is None:
            self._cut()
        elif fault.keeps:
            self._answer(fault.status, [("Content-Type", "application/xml")], _kept(body, fault.code))
        else:
            code = fault.code or CODES[fault.status]
            self._answer(fault.status, [("Content-Type", "application/xml")], _error(code))

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        blocks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            blocks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(blocks)

    def _forward(self, body: bytes, without: str = "") -> tuple[int, Sequence[tuple[str, str]], bytes]:
        with closing(HTTPConnection(self.server.upstream, timeout=TIMEOUT_SECONDS)) as connection:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in HOP_BY_HOP - {"date"} | {without}:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()

    def _answer(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
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

    def _cut(self) -> None:
        """At once, as a server that dies does: with a reset."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.shutdown(socket.SHUT_RDWR)


def _kept(body: bytes, code: str) -> bytes:
    keys = re.findall(rb"<Key>.*?</Key>", body)
    errors = b"".join(b"<Error>%s<Code>%s</Code></Error>" % (key, code.encode()) for key in keys)
    return b'<?xml version="1.0"?><DeleteResult>%s</DeleteResult>' % errors


def _error(code: str) -> bytes:
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>by the proxy</Message></Error>'.encode()
