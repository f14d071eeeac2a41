"""Work for which an agent forks processes with torch: reading its node's machine, and holding a trial's store."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import NoReturn

import msgspec

from bench.machine import machine
from bench.rank.messages import GROUPS_MADE
from collectors.sockets import CannotListen, listen

LOOK_S = 0.05
"""How often to check whether all ranks have made their groups."""


class _TorchProcess:
    """A process forked from the forkserver once that has loaded torch; it sends one answer, and ends when closed.

    Raises:
        RuntimeError: the forkserver starts no process. If torch is the reason, the error of importing it instead.
    """

    def __init__(self, context: ForkServerContext, target: Callable[..., NoReturn], *arguments: object) -> None:
        self._pipe, child_end = context.Pipe()
        self._process = context.Process(target=target, args=(child_end, *arguments))
        try:
            self._process.start()
            child_end.close()
            try:
                self.answer = self._pipe.recv_bytes()
            except EOFError:
                self._process.join()
                raise EOFError(f"its first process ended with {self._process.exitcode}") from None
        except (EOFError, OSError) as error:
            import_module("torch.distributed")  # Raises the reason, if torch is the reason.
            raise RuntimeError(f"the forkserver does not start ranks: {str(error) or type(error).__name__}") from error

    def close(self) -> None:
        self._pipe.close()
        self._process.join()


def read_machine(context: ForkServerContext) -> machine.Machine:
    """Read this node's machine in a process that has torch, so that the agent need not load it.

    Raises:
        RuntimeError: as `_TorchProcess`.
    """
    with closing(_TorchProcess(context, _tell_machine)) as process:
        return msgspec.json.decode(process.answer, type=machine.Machine)


class TrialStore:
    """The key-value store in which ranks of several nodes meet for one trial: torch's TCPStore in a process of its own.

    It does not authenticate clients, so it listens at one address only, and no longer than necessary: until each rank
    has reported that its groups are made (`GROUPS_MADE`), or until it is closed.

    host: the address at which it listens. prefix: the prefix of the trial's keys. ranks: the number of ranks that meet
    there.

    Raises:
        RuntimeError: it cannot listen there; or as `_TorchProcess`.
    """

    def __init__(self, context: ForkServerContext, host: str, prefix: str, ranks: int) -> None:
        self._process = _TorchProcess(context, _hold_store, host, prefix, ranks)
        answer = msgspec.json.decode(self._process.answer, type=int | str)
        if isinstance(answer, str):
            self.close()
            raise RuntimeError(f"the ranks' store cannot be opened: {answer}")
        self.port = answer

    def close(self) -> None:
        self._process.close()


def _tell_machine(pipe: Connection) -> NoReturn:
    import torch.distributed  # noqa: F401  # A torch that cannot be loaded ends this process: no rank could start.

    pipe.send_bytes(msgspec.json.encode(machine.read()))
    os._exit(0)  # Unloading torch would take seconds.


def _hold_store(pipe: Connection, host: str, prefix: str, ranks: int) -> NoReturn:
    """Hold the store until all ranks have made their groups, then wait until the pipe is closed."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # Public, but in no __all__.

    try:
        listener = listen(host, 0)  # By default, the store would listen on every network of the node.
    except CannotListen as error:
        pipe.send_bytes(msgspec.json.encode(str(error)))
        os._exit(0)
    port = listener.getsockname()[1]
    store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    pipe.send_bytes(msgspec.json.encode(port))
    keys = PrefixStore(prefix, store)
    while not pipe.poll(LOOK_S):  # Readable when the other end is closed: nothing is ever sent.
        if keys.add(GROUPS_MADE, 0) >= ranks:
            del keys, store
            pipe.poll(None)
            break
    os._exit(0)
