"""The engine of this machine, whose agent is a child of the runner; and the registry of engines."""

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
"""How long an agent may be silent beyond a trial's limit; ranks with a full GPU take most of a minute to end."""

LOADING_S = 300.0
"""How long an agent may take to load torch, also from a network disk."""

DUMPS = "TORCH_NCCL_DUMP_ON_TIMEOUT"
"""Environment variable: whether torch itself writes a rank's flight record when a collective on NCCL fails."""


class LocalEngine:
    """Runs all ranks on this machine. Use it in a `with`: at its end no process is left."""

    name = "local"

    def __init__(self, *, silent_s: float = SILENT_S) -> None:
        """silent_s: how long the agent may be silent beyond a trial's limit."""
        self._silent_s = silent_s
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # Lives as long as the engine.
        self._decoder: msgspec.json.Decoder[FromAgent] = msgspec.json.Decoder(FromAgent)
        self._agent = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench.engines.agent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment(os.environ),
            start_new_session=True,  # Ctrl-C goes to the runner alone, which then ends the agent in order.
        )
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read_answers, name="agent's answers", daemon=True)
        self._reader.start()

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def machine(self) -> Machine:
        """Wait until ranks can be started; return the machine on which they will run.

        Raises:
            InfrastructureFailed: the agent does not start.
        """
        message = self._receive(LOADING_S)
        if not isinstance(message, Ready):
            raise InfrastructureFailed(f"the agent answered {type(message).__name__} before it was ready")
        return message.machine

    def run(self, order: TrialOrder, progress: Callable[[Progress], None]) -> TrialEnded:
        """Run one trial; return how it ended.

        Raises:
            InfrastructureFailed: the agent is gone, or does not answer.
        """
        assert self._agent.stdin is not None
        try:
            self._agent.stdin.write(msgspec.json.encode(order) + b"\n")
            self._agent.stdin.flush()
        except BrokenPipeError:
            raise InfrastructureFailed(self._how_it_ended()) from None
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
        with suppress(BrokenPipeError):  # The agent is gone, and the pipe still holds an order that it did not read.
            self._agent.stdin.close()
        try:
            self._agent.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._agent.kill()  # Its ranks see the end of their pipe and end themselves.
            self._agent.wait()
        self._reader.join()  # It ends, since nobody else has the other end of the pipe.
        self._agent.stdout.close()
        self._errors.close()

    def _read_answers(self) -> None:
        """Queue each line of the agent; an empty one means that the agent has ended."""
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
            raise InfrastructureFailed(self._how_it_ended())
        message = self._decoder.decode(line)
        if isinstance(message, AgentFailed):
            raise InfrastructureFailed(f"the agent of this machine failed: {message.text}")
        return message

    def _how_it_ended(self) -> str:
        code = self._agent.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        last_line = f"; it said: {lines[-1]}" if lines else ""
        return f"the agent of this machine ended with code {code}{last_line}"


def environment(user: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the forkserver and so of every rank: our settings of torch, unless the user set them.

    NCCL's process groups read their settings when they are created, in the rank (HeartbeatMonitor's constructor in
    ProcessGroupNCCL.cpp). By default a rank that has lost a peer writes its flight record and stacks to /tmp or
    ~/.cache, and its watchdog sleeps four times 15 s meanwhile; we ask for the record ourselves, as JSON (torch 2.11
    to 2.13).
    """
    # The Flight Recorder tells a hung rank from those that wait for it, and has what traced steps sent.
    ours = {"TORCH_FR_BUFFER_SIZE": "10000"}
    if DUMPS not in user:
        ours |= {DUMPS: "0", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "250"}
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            ours["GLOO_SOCKET_IFNAME"] = name  # Else gloo resolves the host's own name, which fails on laptops.
            break
    return {**ours, **user}


# The registry of engines, one line each. Engines differ only in how an agent gets onto a node.


class Engine(Protocol):
    """Starts agents and passes orders to them. Use it in a `with`: at its end none of its processes is left."""

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
