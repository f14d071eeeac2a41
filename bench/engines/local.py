"""The engine of this machine: its agent is a child of the runner, or several agents simulate nodes."""

from __future__ import annotations

import errno
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import IO

import psutil

from bench.engines.agent_link import SILENT_S, AgentLink, StartLimit
from bench.engines.cluster import STOP_S, ClusterEngine, Meeting, NodeRequest
from bench.engines.environment import LOOPBACK
from bench.engines.root_cause import is_chatter
from bench.engines.trees import engines_of_trees
from bench.engines.wire.frames import PipeStream, key_line, meet, new_key
from bench.engines.wire.run_files import LogSizes
from bench.engines.wire.trees import RankTree
from bench.errors import InfrastructureFailed, Misuse
from bench.machine.machine import Machine
from bench.machine.temporary_folders import TemporaryFolder
from bench.rank.messages import TrialEnded, TrialOrder, TrialProgress
from collectors.sockets import CannotListen, listen

LOOPBACK_S = 2.0
"""How long this machine may take to reach itself."""


def check_loopback() -> None:
    """Refuse a machine that cannot reach itself, for example a container without a network: ranks would wait in vain.

    Raises:
        InfrastructureFailed: the loopback interface is down or lacks its address, or a firewall blocks it.
    """
    try:
        with (
            listen(LOOPBACK, 0) as server,
            socket.create_connection(server.getsockname(), timeout=LOOPBACK_S),
        ):
            return
    except (CannotListen, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.EMFILE:
            raise
        interfaces = psutil.net_if_stats().items()
        addresses = {
            address.address for interface_addresses in psutil.net_if_addrs().values() for address in interface_addresses
        }
        down = [name for name, stats in interfaces if "loopback" in stats.flags.split(",") and not stats.isup]
        if down:
            reason, move = f"the loopback interface {down[0]} is down", f"bring it up: `ip link set {down[0]} up`"
        elif LOOPBACK not in addresses:
            reason, move = "no interface has that address", f"give it one: `ip address add {LOOPBACK}/8 dev lo`"
        else:  # A firewall, perhaps.
            words = error.strerror if isinstance(error, OSError) else None
            reason, move = words or str(error), "check what blocks traffic on `lo`"
    raise InfrastructureFailed(f"ranks cannot reach each other at {LOOPBACK} on this machine: {reason}; {move}")


class LocalEngine:
    """Runs all ranks on this machine. Use it in a `with`: at its end no process is left."""

    name = "local"

    def __init__(
        self,
        runs: Path,
        *,
        silent_s: float = SILENT_S,
        tree: RankTree | None = None,
        start_limit: StartLimit | None = None,
    ) -> None:
        """runs: the folder of runs. silent_s, start_limit: see `AgentLink`.

        tree: the source tree that the agent and its ranks run from; by default this program's.

        Raises:
            InfrastructureFailed: this machine cannot reach itself.
        """
        check_loopback()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # Lives as long as the engine.
        self._agent = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench.engines.node.agent", "--runs", str(runs.absolute())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=None if tree is None else environment_of(tree.folder),
            bufsize=0,
            start_new_session=True,  # Ctrl-C reaches only the runner, which then ends the agent in order.
        )
        assert self._agent.stdin is not None
        assert self._agent.stdout is not None
        key = new_key()
        with suppress(BrokenPipeError):  # The agent is already gone, which its missing answer will show.
            self._agent.stdin.write(key_line(key))
        self._link = AgentLink(
            PipeStream(self._agent.stdout, self._agent.stdin),
            partial(meet, key=key, side="runner", protocol=None if tree is None else tree.protocol),
            log_sizes=LogSizes(runs),
            name="the agent of this machine",
            process=self._agent.pid,
            silent_s=silent_s,
            kill=self._agent.kill,  # Its ranks see the end of their pipe and end themselves.
            how_it_ended=self._how_it_ended,
            start_limit=start_limit,
        )

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def machine(self) -> Machine:
        return self._link.machine()

    def run(self, order: TrialOrder, progress: Callable[[TrialProgress], None]) -> TrialEnded:
        return self._link.run(order, progress)

    def collect(self, run: str) -> tuple[str, ...]:
        """See `Engine`: the agent writes to the runner's own folder of runs."""
        return ()

    def stop(self) -> None:
        """End the agent and its ranks; a second call does nothing."""
        if self._errors.closed:
            return
        if not self._link.hang_up(STOP_S):
            self._agent.kill()
        try:
            self._agent.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._agent.kill()
            self._agent.wait()
        self._link.join(STOP_S)  # It ends because nobody else has the other end of the pipe.
        self._errors.close()

    def _how_it_ended(self) -> str:
        code = self._agent.wait()
        self._errors.seek(0)
        return f"the agent of this machine ended with code {code}{_last_line(self._errors.read())}"


def environment_of(source: Path) -> dict[str, str]:
    """Return this process's environment, changed so that Python imports our packages from another source tree."""
    return {**os.environ, "PYTHONPATH": str(source)}


class LocalNodes:
    """An `AgentPlacement` on this machine, to simulate nodes: each has its own folder of runs."""

    name = "local"
    address = LOOPBACK

    def __init__(self, nodes: int) -> None:
        check_loopback()
        self.nodes = tuple(f"node {number}" for number in range(nodes))
        self._agents: list[subprocess.Popen[bytes]] = []
        self._folder = TemporaryFolder("observatory-nodes-")

    def start(self, meeting: Meeting) -> None:
        for node in range(len(self.nodes)):
            words = ["--runs", f"{self._folder.path}/node{node}", "--send-files", *meeting.words(node)]
            with (self._folder.path / f"agent{node}.err").open("wb") as errors:
                self._agents.append(
                    subprocess.Popen(
                        [sys.executable, "-P", "-m", meeting.module, *words],
                        stdin=subprocess.DEVNULL,
                        stdout=errors,
                        stderr=errors,
                        start_new_session=True,  # As for the single agent of `LocalEngine`.
                    )
                )

    def failure(self) -> str | None:
        for node, agent in enumerate(self._agents):
            if (code := agent.poll()) is not None:
                output = (self._folder.path / f"agent{node}.err").read_bytes()
                return f"it ended with code {code}{_last_line(output)}"
        return None

    def left_s(self) -> float:
        return math.inf

    def stop(self) -> None:
        deadline_s = time.monotonic() + STOP_S
        for agent in self._agents:
            try:
                agent.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
        self._folder.close()


def _last_line(output: bytes) -> str:
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip() and not is_chatter(line)]
    return f"; its last line: {lines[-1]}" if lines else ""


class LocalAllocation:
    """This machine, as one node or as several simulated nodes."""

    def __init__(self, request: NodeRequest) -> None:
        if request.file is not None:
            raise Misuse("--engine-file is for a cluster, but the engine is local; leave it out")
        self._nodes = request.nodes
        self._start_limit = StartLimit()

    def __enter__(self) -> LocalAllocation:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to release."""

    def open(self, runs: Path, dropped: Collection[str] = ()) -> LocalEngine | ClusterEngine:
        if self._nodes == 1:
            return LocalEngine(runs, start_limit=self._start_limit)
        return ClusterEngine(LocalNodes(self._nodes), runs, dropped=dropped, start_limit=self._start_limit)

    def open_trees(
        self, runs: Path, trees: Sequence[RankTree], dropped: Collection[str] = ()
    ) -> tuple[LocalEngine | ClusterEngine, ...]:
        """See `Allocation`."""
        if self._nodes > 1:
            placement = LocalNodes(self._nodes)
            return engines_of_trees(placement, runs, trees, dropped=dropped, start_limit=self._start_limit)
        with ExitStack() as stack:
            engines = tuple(
                stack.enter_context(LocalEngine(runs, tree=tree, start_limit=self._start_limit)) for tree in trees
            )
            stack.pop_all()
            return engines
