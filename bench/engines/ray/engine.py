"""The engine of a Ray cluster: a placement group reserves nodes, and an actor on each starts an agent there.

Without a cluster's address, a cluster is started on this machine and ended with the engine. Only the driver, a separate
process, loads ray.
"""

from __future__ import annotations

import importlib.util
import math
import os
import queue
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Annotated, TypeVar

import msgspec

from bench.engines.agent_link import StartLimit
from bench.engines.cluster import STOP_S, Capacity, ClusterEngine, ImplausibleAnswers, Meeting, NodeRequest
from bench.engines.ray.orders import (
    AskAgents,
    Connect,
    Connected,
    Done,
    Failed,
    Listed,
    ListNodes,
    RayAnswer,
    RayNode,
    RayOrder,
    Reserve,
    Reserved,
    StartAgents,
    StopAgents,
    WaitNotice,
    bundle,
    has,
    in_words,
    plausible,
)
from bench.engines.settings_file import Environment, Interpreter, exporter_words, read_settings, setup_lines
from bench.engines.trees import engines_of_trees
from bench.engines.wire.frames import new_key, write_key
from bench.engines.wire.trees import RankTree
from bench.errors import InfrastructureFailed, Misuse, plural
from bench.machine.temporary_folders import TemporaryFolder

CONNECT_S = 60.0
"""How long a cluster may take to answer; a connection takes 2 s."""
LOCAL_S = 180.0
"""How long Ray may take to start on this machine; it usually takes 5 to 10 s."""
START_S = 180.0
"""How long the actors may take to start agents; Ray notices a dead node up to 20 s late."""
ASK_S = 30.0
ROOM_BYTES = 40
"""Longest path of a folder in which Ray makes sockets: a socket's path may have 107 bytes, and Ray adds about 65."""
PASSED = ("NCCL_", "GLOO_", "TORCH_", "UCX_", "FI_")
"""Beginnings of the runner's variables that agents also get, as with Slurm: interfaces, and settings of torch."""
TYPE = "accelerator_type:"
"""Beginning of the name of the Ray resource that names the type of a node's GPUs."""
LIFELINE = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execvp(sys.argv[1], sys.argv[1:])"
"""Executes a command that gets a SIGTERM when its parent, an actor, ends (PR_SET_PDEATHSIG of Linux)."""

NonNegativeInt = Annotated[int, msgspec.Meta(ge=0)]
NonNegativeFloat = Annotated[float, msgspec.Meta(ge=0)]
ExpectedAnswer = TypeVar("ExpectedAnswer", bound=RayAnswer)


class RaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of --engine-file: the cluster, what to reserve on each node, and how to start agents.

    address: the cluster's, for example "10.0.0.1:6379", or "auto" for a cluster on this machine; by default
    RAY_ADDRESS, and without that a cluster is started here.
    cpus, gpus: reserved on each node; by default all that it has. resources: other resources to reserve, by Ray's
    names.
    setup: shell lines that each node runs before its agent, for example "module load cuda". environment: variables of
    the agents and their ranks.
    runner: this machine's address as the nodes reach it; by default that of its own node in the cluster.
    python: the interpreter that has the package on the nodes; by default this one's path.
    exporter, targets: see `SlurmSettings`.
    """

    address: str | None = None
    cpus: NonNegativeFloat | None = None
    gpus: NonNegativeInt | None = None
    resources: dict[str, NonNegativeFloat] = {}
    setup: str = ""
    environment: Environment = {}
    runner: str | None = None
    python: Interpreter = sys.executable
    exporter: str | None = None
    targets: str | None = None


def cluster_address(settings: RaySettings, user: Mapping[str, str]) -> str | None:
    """Return the cluster's address from the settings or the user's RAY_ADDRESS; None if a cluster must be started.

    Raises:
        Misuse: the address is not that of the cluster itself.
    """
    address = settings.address or user.get("RAY_ADDRESS") or "local"
    if address == "local":
        return None
    host, _, port = address.rpartition(":")
    if address != "auto" and ("/" in address or not host or not port.isdecimal() or not 0 < int(port) < 65536):
        where = "address in the engine's file" if settings.address else "RAY_ADDRESS"
        raise Misuse(
            f'{where} is "{address}"; use the address of the cluster itself, for example 10.0.0.1:6379, or auto'
        )
    return address


class RayAllocation:
    """Nodes of a Ray cluster. Use it in a `with`: at its end they are released, and a cluster started here ends."""

    def __init__(self, request: NodeRequest) -> None:
        self.settings = read_settings(request.file, RaySettings)
        self.exporter = exporter_words(request.file, self.settings.exporter, self.settings.targets)
        self._address = cluster_address(self.settings, os.environ)
        self._request = request
        self._start_limit = StartLimit()
        self._driver: RayDriver | None = None
        self.runner = ""  # Address of this machine, once the driver has connected.
        if self._address is None and request.nodes > 1:
            raise Misuse(
                f"--nodes is {request.nodes}, but without a cluster's address Ray starts on this machine, which is one"
                ' node; set address = "10.0.0.1:6379" in the engine\'s file, or RAY_ADDRESS'
            )

    def __enter__(self) -> RayAllocation:
        self._driver, connected = _connect(self._address, self._request.tell)
        try:
            self.runner = self.settings.runner or connected.address
            self.names()
        except BaseException:
            self._driver.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._driver is not None:
            self._driver.close()

    def open(self, runs: Path, dropped: Collection[str] = ()) -> ClusterEngine:
        """Open an engine on the reserved nodes, among which may be replacements of nodes that died.

        Raises:
            InfrastructureFailed: the cluster is gone, or no longer has enough nodes.
        """
        return ClusterEngine(RayPlacement(self, self.names()), runs, dropped=dropped, start_limit=self._start_limit)

    def open_trees(
        self, runs: Path, trees: Sequence[RankTree], dropped: Collection[str] = ()
    ) -> tuple[ClusterEngine, ...]:
        """See `Allocation`; on the reserved nodes."""
        placement = RayPlacement(self, self.names())
        return engines_of_trees(placement, runs, trees, dropped=dropped, start_limit=self._start_limit)

    @property
    def driver(self) -> RayDriver:
        """The connection to the cluster."""
        assert self._driver is not None, "it is entered"
        return self._driver

    def names(self) -> tuple[str, ...]:
        """Wait until the nodes are reserved; return their names by number.

        Raises:
            InfrastructureFailed: the cluster is gone, or no longer has enough nodes.
            Misuse: it never had enough.
        """
        return self.driver.ask(_reserve(self.settings, self._request.nodes), Reserved, math.inf).names


def read_capacity(request: NodeRequest) -> Capacity | None:
    """Return what the nodes have on which the request's cases would run; None if Ray would be started here.

    Raises:
        InfrastructureFailed: the cluster does not answer, or Ray is not installed.
        Misuse: the settings are wrong, or there are fewer such nodes.
    """
    settings = read_settings(request.file, RaySettings)
    if (address := cluster_address(settings, os.environ)) is None:
        return None
    driver, _ = _connect(address, request.tell)
    with closing(driver):
        return capacity_of(_reserve(settings, request.nodes), driver.ask(ListNodes(), Listed, ASK_S).nodes)


def capacity_of(order: Reserve, nodes: Sequence[RayNode]) -> Capacity:
    """Return what each node that Ray may reserve has at least: its cores, and the GPUs that are reserved.

    Memory is left out, because Ray knows only the memory that it hands out itself.

    Raises:
        Misuse: fewer nodes have what the order requests, or it requests nothing.
    """
    doubts = ImplausibleAnswers("Ray")
    for node in nodes:
        for resource, value in node.implausible.items():
            doubts.out_of_range(resource, value, *plausible(resource), node.name)
    reserved = bundle(order, nodes)
    able = [node.resources for node in nodes if has(node, reserved)]
    # A node with GPUs of one type also has a resource such as "accelerator_type:A100".
    types = {tuple(name for name in resources if name.startswith(TYPE)) for resources in able}
    (types_of_first, *other_types) = types
    name = types_of_first[0].removeprefix(TYPE) if len(types_of_first) == 1 and not other_types else "GPU"
    return Capacity(
        whose="a node of Ray's cluster",
        asks=f"Ray would be asked for {plural(order.nodes, 'node')} with {in_words(reserved)} on each",
        cores=int(min(resources.get("CPU", 0.0) for resources in able)) or None,
        gpus=(name,) * int(reserved.get("GPU", 0.0)),
        notes=tuple(doubts.lines()),
        implausible=dict(doubts.counts),
        source="ray",
    )


def _reserve(settings: RaySettings, nodes: int) -> Reserve:
    return Reserve(nodes=nodes, cpus=settings.cpus, gpus=settings.gpus, resources=settings.resources)


def _connect(address: str | None, tell: Callable[[str], None]) -> tuple[RayDriver, Connected]:
    """Return a connected driver, and its answer. address: the cluster's; None to start a cluster.

    Raises:
        InfrastructureFailed: there is no cluster, it does not answer, or Ray is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise InfrastructureFailed(
            "the engine ray needs the package ray, which is not installed; pip install 'parallel-observatory[ray]'"
        )
    driver = RayDriver(tell, starts_cluster=address is None)
    try:
        order = Connect(address=address, folder=driver.folder)
        return driver, driver.ask(order, Connected, LOCAL_S if address is None else CONNECT_S)
    except BaseException:
        driver.close()
        raise


class RayPlacement:
    """An `AgentPlacement`: agents as children of actors, one on each node; a method's argument has the key."""

    name = "ray"

    def __init__(self, allocation: RayAllocation, nodes: tuple[str, ...]) -> None:
        self.nodes = nodes
        self.address = allocation.runner
        self._settings, self._driver, self._exporter = allocation.settings, allocation.driver, allocation.exporter

    def start(self, meeting: Meeting) -> None:
        settings = self._settings
        agent = [settings.python, "-P", "-m", meeting.module, *meeting.address_words]
        agent += self._exporter if not meeting.trees else []  # The port may be another agent's.
        agent = [settings.python, "-c", LIFELINE, *agent]
        lines = [*setup_lines(settings.setup), f'exec {shlex.join(agent)} --send-files "$@"']
        passed = {name: value for name, value in os.environ.items() if name.startswith(PASSED)}
        order = StartAgents(
            words=("sh", "-c", "\n".join(lines), "sh"),
            key=meeting.key_file.read_bytes(),
            environment={**passed, **settings.environment},
        )
        self._driver.ask(order, Done, START_S)

    def failure(self) -> str | None:
        try:
            self._driver.ask(AskAgents(), Done, ASK_S)
        except InfrastructureFailed as error:
            return str(error)
        return None

    def left_s(self) -> float:
        return math.inf

    def stop(self) -> None:
        with suppress(InfrastructureFailed):  # The driver is gone, and with it the actors and their agents.
            self._driver.ask(StopAgents(), Done, STOP_S + ASK_S)


class RayDriver:
    """The process that is connected to Ray. It ends with this process, and what it started ends with it.

    tell: called with a notice while it waits. starts_cluster: whether it will start a cluster. folder: for that
    cluster's files; removed at the end.
    """

    def __init__(self, tell: Callable[[str], None], *, starts_cluster: bool) -> None:
        self._tell = tell
        self._own_folder = None
        if starts_cluster:  # In /tmp if the path would be too long for sockets.
            place = tempfile.gettempdir()
            is_short = len(os.fsencode(place)) + len("/ray-12345678") <= ROOM_BYTES
            self._own_folder = TemporaryFolder("ray-", within=place if is_short else "/tmp")
        self.folder = None if self._own_folder is None else str(self._own_folder.path)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # Lives as long as the driver.
        variables = {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # If uv started the runner, it would send this folder to all nodes.
        }
        if self.folder is not None and "RAY_AUTH_MODE" not in os.environ:  # Ray's own token would stay in the home.
            write_key(token := Path(self.folder, "token"), new_key())
            variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        user = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}  # `Connect` has it.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench.engines.ray.driver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**user, **variables},
            start_new_session=True,  # Ctrl-C reaches only the runner, which then ends the agents in order.
        )
        self._answers: queue.SimpleQueue[RayAnswer | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="answers of Ray's driver", daemon=True)
        self._reader.start()

    def ask(self, order: RayOrder, kind: type[ExpectedAnswer], within_s: float) -> ExpectedAnswer:
        """Send an order; return its answer.

        Raises:
            InfrastructureFailed: the order failed, or the driver has ended or does not answer; then it is killed.
            Misuse: the request is invalid.
        """
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # The driver has ended, which its missing answer shows.
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
            self._process.stdin.flush()
        while True:
            try:
                answer = self._answers.get(timeout=None if within_s == math.inf else within_s)
            except queue.Empty:
                self._process.kill()
                raise InfrastructureFailed(
                    f"Ray did not answer within {within_s:g} s; check the cluster with `ray status`"
                ) from None
            match answer:
                case None:
                    self._answers.put(None)  # For the next reader.
                    raise InfrastructureFailed(f"the connection to Ray's cluster has ended{self._driver_end()}")
                case WaitNotice():
                    self._tell(answer.text)
                case Failed(is_misuse=True):
                    raise Misuse(answer.text)
                case Failed():
                    raise InfrastructureFailed(answer.text)
                case _:
                    assert isinstance(answer, kind), "an order has one kind of answer"
                    return answer

    def close(self) -> None:
        """End the driver and everything it started; a second call does nothing."""
        if self._errors.closed:
            return
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_S + ASK_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(ASK_S)
        self._errors.close()
        if self._own_folder is not None:
            self._own_folder.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        decoder = msgspec.json.Decoder(RayAnswer)
        with self._process.stdout as lines:
            for line in lines:
                self._answers.put(decoder.decode(line))
        self._answers.put(None)

    def _driver_end(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        printed_lines = [" ".join(line.split()) for line in lines if line.strip()]
        last_line = f"; its last line: {printed_lines[-1]}" if printed_lines else ""
        return f": its driver ended with code {self._process.returncode}{last_line}"
