"""The engine of this machine: one agent, as a child of the runner."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import IO, Protocol

import msgspec
import psutil

from bench.errors import InfrastructureFailed
from bench.machine.machine import Machine
from bench.rank.messages import AgentFailed, FromAgent, Progress, Ready, TrialEnded, TrialOrder

STOP_S = 10.0
"""How long an agent may take to end its ranks and itself before it is killed."""

SILENT_S = 120.0
"""How long an agent may say nothing beyond a trial's limit; ranks with a full GPU take most of a minute to end."""

LOADING_S = 300.0
"""How long an agent may load torch, from a disk on the network too."""

DUMPS = "TORCH_NCCL_DUMP_ON_TIMEOUT"
"""Whether torch itself writes a rank's Flight Record when a collective on NCCL fails."""


class LocalEngine:
    """All ranks on this machine. Use it in a `with`: at its end no process of it is left."""

    name = "local"

    def __init__(self, *, silent_s: float = SILENT_S) -> None:
        """silent_s: how long the agent may say nothing beyond a trial's limit."""
        self._silent_s = silent_s
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # Lives as long as the engine.
        self._decoder: msgspec.json.Decoder[FromAgent] = msgspec.json.Decoder(FromAgent)
        self._agent = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench.engines.agent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment(os.environ),
            start_new_session=True,  # Ctrl-C is for the runner, which then ends the agent in order.
        )
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._hearing = threading.Thread(target=self._hear, name="agent's answers", daemon=True)
        self._hearing.start()

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def machine(self) -> Machine:
        """The machine where the ranks will run; waits until they can be started.

        Raises:
            InfrastructureFailed: the agent does not start.
        """
        message = self._receive(LOADING_S)
        if not isinstance(message, Ready):
            raise InfrastructureFailed(f"the agent answered {type(message).__name__} before it was ready")
        return message.machine

    def run(self, order: TrialOrder, progress: Callable[[Progress], None]) -> TrialEnded:
        """Measure one trial.

        Raises:
            InfrastructureFailed: the agent is gone, or says nothing.
        """
        assert self._agent.stdin is not None
        try:
            self._agent.stdin.write(msgspec.json.encode(order) + b"\n")
            self._agent.stdin.flush()
        except BrokenPipeError:
            raise InfrastructureFailed(self._obituary()) from None
        until = time.monotonic() + order.limit_s + self._silent_s
        while True:
            message = self._receive(until - time.monotonic())
            if isinstance(message, Progress):
                progress(message)
            elif isinstance(message, TrialEnded):
                return message

    def stop(self) -> None:
        """End the agent and its ranks; a second call does nothing."""
        if self._errors.closed:
            return
        assert self._agent.stdin is not None
        assert self._agent.stdout is not None
        with suppress(BrokenPipeError):  # The agent is gone, and an order that it never read is still in the pipe.
            self._agent.stdin.close()
        try:
            self._agent.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._agent.kill()  # Its ranks see the end of their pipe and end themselves.
            self._agent.wait()
        self._hearing.join()  # Nobody else has the other end of the pipe.
        self._agent.stdout.close()
        self._errors.close()

    def _hear(self) -> None:
        """Take each line that the agent says; an empty one is its end."""
        assert self._agent.stdout is not None
        for line in self._agent.stdout:
            self._answers.put(line)
        self._answers.put(b"")

    def _receive(self, within_s: float) -> FromAgent:
        try:
            line = self._answers.get(timeout=max(0.0, within_s))
        except queue.Empty:
            self._agent.kill()  # Its ranks see the end of their pipe and end themselves.
            raise InfrastructureFailed(
                f"the agent of this machine (process {self._agent.pid}) has not answered in time, and was ended: it was"
                " stopped, or the machine is too busy for it"
            ) from None
        if not line:
            raise InfrastructureFailed(self._obituary())
        message = self._decoder.decode(line)
        if isinstance(message, AgentFailed):
            raise InfrastructureFailed(f"the agent of this machine failed: {message.text}")
        return message

    def _obituary(self) -> str:
        code = self._agent.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        said = f"; it said: {lines[-1]}" if lines else ""
        return f"the agent of this machine ended with code {code}{said}"


def environment(user: Mapping[str, str]) -> dict[str, str]:
    """What the forkserver and so every rank inherits: torch's own settings, unless the user set them.

    NCCL's process groups read theirs when they are made, in the rank: HeartbeatMonitor's constructor in
    ProcessGroupNCCL.cpp. By default a rank that a peer has left writes its record to /tmp or ~/.cache, with its stacks,
    and its watchdog sleeps four times 15 s to let it; we ask for the record ourselves, as JSON (torch 2.11 to 2.13).
    """
    # The flight recorder, which tells a hung rank from those that wait for it, and holds what traced steps sent.
    ours = {"TORCH_FR_BUFFER_SIZE": "10000"}
    if DUMPS not in user:
        ours |= {DUMPS: "0", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "250"}
    loopback = _loopback()
    if loopback is not None:
        ours["GLOO_SOCKET_IFNAME"] = loopback  # gloo would look up the host's own name, which laptops cannot resolve.
    return {**ours, **user}


def _loopback() -> str | None:
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            return name
    return None


# Every engine there is, one line each. Engines differ in how an agent gets onto a node, and in nothing else.


class Engine(Protocol):
    """Places agents and passes orders on to them. Used in a `with`, at whose end none of its processes is left."""

    name: str

    def __enter__(self) -> Engine: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def machine(self) -> Machine: ...
    def stop(self) -> None: ...
    def run(self, order: TrialOrder, progress: Callable[[Progress], None]) -> TrialEnded: ...


ENGINES: dict[str, Callable[[], Engine]] = {
    LocalEngine.name: LocalEngine,
}
