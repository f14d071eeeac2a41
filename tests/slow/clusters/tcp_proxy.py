"""A TCP proxy on this machine, whose target can be gone for a while: connections are closed, new ones refused."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_PIECE_BYTES = 1 << 16


class TcpProxy:
    """Passes on what comes at a port of its own to another port of this machine. It begins open."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        # Never listens: it keeps the port for us while nobody does.
        self._holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._holder.bind(("127.0.0.1", 0))
        self.port: int = self._holder.getsockname()[1]
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._is_open = False
        self._open()

    @contextmanager
    def gone(self) -> Iterator[None]:
        """Within it, all connections are closed and new ones refused; afterwards new ones are taken again."""
        self._shut()
        yield
        self._open()

    def close(self) -> None:
        """Close everything."""
        self._shut()
        self._holder.close()

    def _open(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", self.port))
        self._is_open = True
        self._start(self._listen)

    def _shut(self) -> None:
        with self._lock:
            self._is_open = False
            for end in (self._listening, *self._ends):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)  # Wakes its thread.
        for thread in self._threads:
            thread.join()
        for end in (self._listening, *self._ends):
            end.close()
        self._ends, self._threads = [], []

    def _start(self, target: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=target, args=arguments, name="TCP proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            with self._lock:
                self._ends.append(client)
                if not self._is_open:
                    return
                target = socket.create_connection(("127.0.0.1", self._target_port))
                self._ends.append(target)
                self._start(self._pass_on, client, target)
                self._start(self._pass_on, target, client)

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_PIECE_BYTES):
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
