"""A TCP proxy that loses, delays or changes answers: the server works on, and nobody hears of it, or hears later."""

import ctypes
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Event, Thread

LOOPBACK = "127.0.0.1"
_BLOCK_BYTES = 65536
_ATTACH_FILTER = 26
_DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
"""The program of one instruction that the kernel runs over each packet: it keeps nothing."""


def _set() -> Event:
    event = Event()
    event.set()
    return event


@dataclass(slots=True, kw_only=True)
class Proxy:
    """`answer` changes what the server sends. `lost`: the answer, or a part of it, at which it cuts itself."""

    port: int
    answer: Callable[[bytes], bytes] = bytes
    lost: bytes = b""
    is_cut: Event = field(default_factory=Event)
    _flows: Event = field(default_factory=_set)
    _open: list[socket.socket] = field(default_factory=list)

    def cut(self) -> None:
        """Every connection ends, and new ones end at once."""
        self.is_cut.set()
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def silence(self) -> None:
        """Every connection drops what both sides send, without a word: as if their machine lost its network."""
        for connection in self._open:
            program = struct.pack("HP", 1, ctypes.addressof(_DROP_ALL))
            connection.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)

    def mend(self) -> None:
        self.is_cut.clear()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nothing arrives, in neither direction, until the block ends."""
        self._flows.clear()
        try:
            yield
        finally:
            self._flows.set()

    def serve(self, listener: socket.socket, server_port: int) -> None:
        """Until the listener is closed."""
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                if self.is_cut.is_set():
                    client.close()
                    continue
                server = socket.create_connection((LOOPBACK, server_port))
                self._open += [client, server]
                for way in ((client, server, bytes), (server, client, self.answer)):
                    Thread(target=self._copy, args=way, daemon=True).start()

    def close(self) -> None:
        self._flows.set()
        self.cut()
        for connection in self._open:
            connection.close()

    def _copy(self, source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes]) -> None:
        with suppress(OSError):
            while block := source.recv(_BLOCK_BYTES):
                self._flows.wait()
                if self.lost and self.lost in block:
                    self.cut()
                target.sendall(change(block))
        for connection in (source, target):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxied(server_port: int, answer: Callable[[bytes], bytes] = bytes) -> Iterator[Proxy]:
    with socket.create_server((LOOPBACK, 0)) as listener:
        proxy = Proxy(port=listener.getsockname()[1], answer=answer)
        thread = Thread(target=proxy.serve, args=(listener, server_port), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.close()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
