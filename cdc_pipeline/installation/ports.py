"""Free TCP ports on loopback."""

import socket

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A port that nobody listens on now. The caller must bind it soon."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def is_listening(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        return probe.connect_ex((LOOPBACK, port)) == 0
