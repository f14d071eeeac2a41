"""The key-value store in which ranks meet: torch's TCPStore in its own process, so the agent need not load torch."""

from __future__ import annotations

import os
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import NoReturn

from bench.machine import machine
from collectors.sockets import listen


class NodeStore:
    """A store that ranks reach at `port`, until it is closed or this process ends.

    machine: this node as seen by the store's process, which has torch loaded.
    """

    def __init__(self, context: ForkServerContext, host: str) -> None:
        """Fork the store's process, once the forkserver has loaded torch. host: the address at which the store listens.

        Raises:
            RuntimeError: the forkserver starts no process. If torch is the reason, what importing it raises instead.
        """
        self._pipe, child_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(child_end, host))
        try:
            self._process.start()
            child_end.close()
            try:
                answer: tuple[int, machine.Machine] = self._pipe.recv()
            except EOFError:
                self._process.join()
                raise EOFError(f"its first process ended with {self._process.exitcode}") from None
            self.port, self.machine = answer
        except (EOFError, OSError) as error:
            import_module("torch.distributed")  # Raises the reason, if torch is the reason.
            raise RuntimeError(f"the forkserver does not start ranks: {str(error) or type(error).__name__}") from error

    def close(self) -> None:
        """End the store and its process."""
        self._pipe.close()
        self._process.join()


def _serve(pipe: Connection, host: str) -> NoReturn:
    """Run the store in its process until the pipe is closed."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # Public, but in no __all__.

    listener = listen(host, 0)  # By itself, the store would listen on every network of the node.
    port = listener.getsockname()[1]
    store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    pipe.send((port, machine.read()))
    pipe.poll(None)  # Returns when the other end is closed: nothing is ever sent.
    del store
    os._exit(0)  # Unloading torch would take seconds.
