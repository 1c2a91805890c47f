"""An HTTP proxy before an S3 server that lets calls fail: by script, or by seeded chance."""

import socket
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from http.client import HTTPConnection, HTTPMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from threading import Event, Lock, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

LOOPBACK = "127.0.0.1"
UPSTREAM_SECONDS = 60
HOP_HEADERS = frozenset({"connection", "transfer-encoding", "content-length"})
BODY = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>made by the fault proxy</Message></Error>"
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
class Fault:
    """`acts`: the server has done it, and the answer is lost. Without a `status` the connection ends unanswered."""

    name: str
    status: int | None = None
    acts: bool = False
    holds_seconds: float = 0


INTERNAL, SLOW_DOWN = Fault(name="500", status=500), Fault(name="503", status=503)
PRECONDITION, CONFLICT = Fault(name="412", status=412), Fault(name="409", status=409)
RESET = Fault(name="connection reset")
ACTED_AND_CUT = Fault(name="done, answer cut off", acts=True)
ACTED_AND_500 = Fault(name="done, answered 500", acts=True, status=500)
ACTED_AND_503 = Fault(name="done, answered 503", acts=True, status=503)


def no_answer(seconds: float) -> Fault:
    """Longer than the caller waits."""
    return Fault(name="no answer in time", holds_seconds=seconds)


PASSING = (INTERNAL, SLOW_DOWN, RESET, ACTED_AND_CUT, ACTED_AND_500, ACTED_AND_503)
"""What any call must survive, whatever it asks for."""


@dataclass(slots=True, kw_only=True)
class FaultPlan:
    """Which calls fail next; `made` counts the faults that were made, and `calls` every call."""

    made: Counter[tuple[Call, str]] = field(default_factory=Counter)
    calls: Counter[Call] = field(default_factory=Counter)
    closing: Event = field(default_factory=Event)
    _next: dict[Call, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    _choose: Callable[[], Fault | None] | None = None
    _lock: Lock = field(default_factory=Lock)

    def fail(self, call: Call, fault: Fault, *, times: int) -> None:
        with self._lock:
            self._next[call] += [fault] * times

    def forget(self, call: Call) -> int:
        """How many planned faults of a call were not made; they never will be."""
        with self._lock:
            return len(self._next.pop(call, []))

    @contextmanager
    def storm(self, chance: Random, faults: Sequence[Fault], *, share: float) -> Iterator[None]:
        """Inside the block about that share of all calls fails, whatever they are."""
        with self._lock:
            self._choose = lambda: chance.choice(faults) if chance.random() < share else None
        try:
            yield
        finally:
            with self._lock:
                self._choose = None

    def fault_of(self, call: Call) -> Fault | None:
        with self._lock:
            self.calls[call] += 1
            planned = self._next[call]
            fault = planned.pop(0) if planned else self._choose and self._choose()
            if fault is not None:
                self.made[call, fault.name] += 1
            return fault


@contextmanager
def fault_proxy(upstream: str) -> Iterator[tuple[str, FaultPlan]]:
    """The proxy's own URL, and the plan of what fails."""
    plan = FaultPlan()

    class Handler(_Handler):
        server_plan = plan
        address = urlsplit(upstream).netloc

    with ThreadingHTTPServer((LOOPBACK, 0), Handler) as server:
        thread = Thread(target=server.serve_forever, name="fault proxy")
        thread.start()
        try:
            yield f"http://{LOOPBACK}:{server.server_port}", plan
        finally:
            plan.closing.set()
            server.shutdown()
            thread.join()


def call_of(method: str, target: str) -> Call:
    parts = urlsplit(target)
    asked = set(parse_qs(parts.query, keep_blank_values=True))
    if "uploadId" in asked:
        return {"PUT": Call.PUT_PART, "POST": Call.COMPLETE_PARTS, "DELETE": Call.ABORT_PARTS}.get(method, Call.OTHER)
    if method == "POST":
        return Call.BEGIN_PARTS if "uploads" in asked else Call.DELETE if "delete" in asked else Call.OTHER
    is_object = "/" in parts.path.strip("/")
    if method == "GET" and not is_object:
        return Call.LIST
    plain = {"PUT": Call.PUT, "GET": Call.GET, "HEAD": Call.HEAD, "DELETE": Call.DELETE}
    return plain.get(method, Call.OTHER) if is_object else Call.OTHER


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_plan: FaultPlan
    address: str

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def log_message(self, *_words: Any) -> None:
        return

    def _serve(self) -> None:
        """A caller that has hung up meanwhile is nobody's fault."""
        with suppress(ConnectionError):
            self._serve_one()

    def _serve_one(self) -> None:
        body = self._body()
        fault = self.server_plan.fault_of(call_of(self.command, self.path))
        if fault is None:
            self._answer(*self._forward(body))
            return
        if fault.acts:
            self._forward(body)
        if fault.holds_seconds:
            self.server_plan.closing.wait(fault.holds_seconds)
        if fault.status is None:
            self._cut()
        else:
            content = b"" if self.command == "HEAD" else BODY.format(code=CODES[fault.status]).encode()
            self._answer(fault.status, {"Content-Type": "application/xml"}, content)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        blocks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            blocks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(blocks)

    def _forward(self, body: bytes) -> tuple[int, HTTPMessage, bytes]:
        with closing(HTTPConnection(self.address, timeout=UPSTREAM_SECONDS)) as connection:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in HOP_HEADERS and name.lower() != "expect":
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            content = answer.read()
            if self.command == "HEAD":
                return answer.status, answer.headers, content
            return answer.status, _without(answer.headers, "content-length"), content

    def _answer(self, status: int, headers: Any, content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in HOP_HEADERS - {"content-length"}:
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _cut(self) -> None:
        """At once, as a server that dies does: with a reset."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.shutdown(socket.SHUT_RDWR)


def _without(headers: HTTPMessage, name: str) -> HTTPMessage:
    del headers[name]
    return headers
