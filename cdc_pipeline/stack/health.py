"""Whether a server answers, told by one URL.

postgresql://…            accepts a connection
tcp://host:port           listens
http://host/path          answers 200
http://host/path#part     answers 200 and its JSON says that `part` is healthy

python -m cdc_pipeline.stack.health URL      exit code 0 or 1
"""

import socket
import sys
from urllib.parse import urldefrag, urlsplit

import httpx

from cdc_pipeline.stack.postgres import is_accepting

PATIENCE_SECONDS = 3


def is_healthy(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme == "postgresql":
        return is_accepting(url)
    if parts.scheme == "tcp":
        return _listens(parts.hostname or "", parts.port or 0)
    return _answers(*urldefrag(url))


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), PATIENCE_SECONDS).close()
    except OSError:
        return False
    return True


def _answers(url: str, part: str) -> bool:
    try:
        response = httpx.get(url, timeout=PATIENCE_SECONDS, trust_env=False)
        if not part:
            return response.is_success
        return response.is_success and response.json()[part]["status"] == "healthy"
    except (httpx.HTTPError, ValueError, KeyError):
        return False


if __name__ == "__main__":
    sys.exit(0 if is_healthy(sys.argv[1]) else 1)
