"""Free TCP ports on loopback."""

import secrets
import socket

LOOPBACK = "127.0.0.1"
_FIRST, _END = 10_000, 32_768
"""Below the ports that Linux gives to outgoing connections: one of those could take a free port before it is bound."""
_TRIES = 100


def free_port() -> int:
    """A port that nobody listens on now. The caller must bind it soon."""
    for _ in range(_TRIES):
        port = _FIRST + secrets.randbelow(_END - _FIRST)
        if _is_free(port):
            return port
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def is_listening(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        return probe.connect_ex((LOOPBACK, port)) == 0


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
