"""Whether a process is healthy, described by a URL.

postgresql://…              accepts a connection without TLS
http2://host:port           answers the first frame of HTTP/2, as a gRPC server does
http://host/path            answers 200
http://host/path#part       answers 200, and its JSON reports `part` as healthy
heartbeat:///path#seconds   the file was touched within this many seconds; special characters of its path as %XX

The kernel accepts connections for a stopped process, so each check waits for an answer of the process itself.

python -m cdc_pipeline.launcher.health URL      exit code 0 or 1
"""

import json
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from enum import StrEnum
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

import psycopg2

TIMEOUT_SECONDS = 3
_HEARTBEAT = "heartbeat"
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_EMPTY_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_FRAME_HEAD_BYTES, _TYPE_AT = 9, 3
_OK = 200


class Health(StrEnum):
    """SILENT: no answer, or the process reports itself as unhealthy. UNKNOWN: the answer says nothing about it.

    UNKNOWN: a PostgreSQL that refuses the connection because it starts, recovers or has no free connection; and a part
    of Airflow while the API server that reports on it does not answer or has no database.
    """

    HEALTHY = "healthy"
    SILENT = "silent"
    UNKNOWN = "unknown"


def is_healthy(url: str) -> bool:
    return health_of(url) is Health.HEALTHY


def health_of(url: str) -> Health:
    parts = urlsplit(url)
    match parts.scheme:
        case "postgresql":
            return _of_postgres(url)
        case "http2":
            return _as_health(answers=_speaks_http2(parts.hostname or "", parts.port or 0))
        case "heartbeat":
            return _as_health(answers=_is_fresh(Path(unquote(parts.path)), float(parts.fragment)))
    page = _page(parts)
    return _of_part(page, parts.fragment) if parts.fragment else _as_health(answers=page is not None)


def unanswered(url: str) -> Health:
    """The health if a check does not return. UNKNOWN if it asks another process than the one in question."""
    parts = urlsplit(url)
    return Health.UNKNOWN if parts.scheme == "http" and parts.fragment else Health.SILENT


def heartbeat_url(path: str, *, seconds: int) -> str:
    return f"{_HEARTBEAT}://{quote(path)}#{seconds}"


def forget(url: str | None) -> None:
    """Deletes the heartbeat file of an earlier process, which would count for the next one."""
    parts = urlsplit(url or "")
    if parts.scheme == _HEARTBEAT:
        Path(unquote(parts.path)).unlink(missing_ok=True)


def _as_health(*, answers: bool) -> Health:
    return Health.HEALTHY if answers else Health.SILENT


def _of_postgres(url: str) -> Health:
    try:
        connection = psycopg2.connect(
            url, connect_timeout=TIMEOUT_SECONDS, sslmode="disable", channel_binding="disable"
        )
        connection.close()
    except psycopg2.OperationalError as error:
        return Health.UNKNOWN if "FATAL" in str(error) else Health.SILENT
    return Health.HEALTHY


def _speaks_http2(host: str, port: int) -> bool:
    """Whether the server sends SETTINGS, the first frame of every HTTP/2 server."""
    try:
        with socket.create_connection((host, port), TIMEOUT_SECONDS) as connection:
            connection.sendall(_HTTP2_PREFACE + _EMPTY_SETTINGS)
            head = connection.recv(_FRAME_HEAD_BYTES, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(head) == _FRAME_HEAD_BYTES and head[_TYPE_AT] == _EMPTY_SETTINGS[_TYPE_AT]


def _is_fresh(path: Path, seconds: float) -> bool:
    try:
        return time.time() - path.stat().st_mtime <= seconds
    except OSError:
        return False


def _page(parts: SplitResult) -> bytes | None:
    """The body of an HTTP answer with status 200, else None."""
    with closing(HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_SECONDS)) as connection:
        try:
            connection.request("GET", parts.path)
            response = connection.getresponse()
            return response.read() if response.status == _OK else None
        except (OSError, HTTPException):
            return None


def _of_part(page: bytes | None, part: str) -> Health:
    try:
        document: Mapping[str, Any] = json.loads(page or b"{}")
        if document["metadatabase"]["status"] != Health.HEALTHY:
            return Health.UNKNOWN
        return _as_health(answers=document[part]["status"] == Health.HEALTHY)
    except (ValueError, KeyError, TypeError):
        return Health.UNKNOWN


if __name__ == "__main__":
    sys.exit(0 if is_healthy(sys.argv[1]) else 1)
