"""The engine for several nodes: each has an agent, started by a placement, and a share of a trial's ranks."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol

import msgspec

from bench.engines.agent_link import SILENT_S, AgentLink, NodeCheck, StartLimit
from bench.engines.node.tree_folder import digest_of
from bench.engines.trial_parts import Parts, ReadyNode, joined, spread
from bench.engines.wire.channel import ChannelThreads
from bench.engines.wire.frames import new_key, write_key
from bench.engines.wire.run_files import LogSizes
from bench.engines.wire.tcp import AgentListener
from bench.engines.wire.trees import RankTree, TreeServer
from bench.errors import InfrastructureFailed, Misuse, say
from bench.machine.limits.process_limits import require_files
from bench.machine.machine import Machine
from bench.machine.machine_diff import MachineDifference, differences_of_nodes
from bench.machine.placement import NodePlace, rank_places, write_placement
from bench.machine.temporary_folders import TemporaryFolder, sweep_in_background
from bench.rank.messages import Ready, TrialEnded, TrialOrder, TrialProgress
from collectors.files import replace_file, sync_folder


class ImplausibleAnswers:
    """A cluster's implausible answers: their number by query, and an example of each for the user.

    cluster: its name in messages, for example "Slurm".
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self.counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}

    def add(self, question: str, example: str) -> None:
        self.counts[question] += 1
        self._examples.setdefault(question, example)

    def number(self, question: str, value: object, least: int, most: int, node: str) -> int | None:
        """Return a number if it is in its range; otherwise count it, and return None."""
        text = str(value)
        if text.isdecimal() and least <= int(text) <= most:
            return int(text)
        self.out_of_range(question, value, least, most, node)
        return None

    def out_of_range(self, question: str, value: object, least: int, most: int, node: str) -> None:
        """Count a number that is out of its range."""
        self.add(question, f"{question} {value} of node {node} (plausible: {least} to {most})")

    def lines(self) -> list[str]:
        """Return a line for each query with implausible answers."""
        return [f"{self._cluster}: {text} is left out{self._more(name)}" for name, text in self._examples.items()]

    def _more(self, question: str) -> str:
        more = self.counts[question] - 1
        return f", and {more} more of {question}" if more else ""


SPARE_S = 60.0
"""How long before the end of an allocation the last trial must have ended: Slurm may signal that early."""
LEAST_S = 5.0
"""The shortest time that is worth a trial."""
LATE_S = 60.0
"""How much longer the other agents may take to connect after one has failed, if its node may be left out."""
LOOK_S = 0.5
"""How often the placement is checked for failed agents."""
STOP_S = 10.0
"""How long an agent may take to end its ranks and itself before the placement ends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where agents meet their runner.

    key_file: holds this engine's key; only the user can read it. trees: `SHA256:PORT:PORT` for each source tree that a
    node's agents run from: its hash, the runner's port that sends it, and the port to which its agent connects; if
    empty, agents run from this program's tree.
    """

    host: str
    port: int
    key_file: Path
    trees: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """The module that is started as a node's agent."""
        return "bench.engines.node.tree_agents" if self.trees else "bench.engines.node.agent"

    @property
    def address_words(self) -> list[str]:
        """The agent's command-line arguments with the runner's addresses."""
        trees = [word for tree in self.trees for word in ("--tree", tree)]
        return [*trees, "--connect", f"{self.host}:{self.port}"]

    def words(self, node: int) -> list[str]:
        """Return all of the agent's arguments, for a node that shares this machine's files."""
        return [*self.address_words, "--key-file", str(self.key_file), "--node", str(node)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrance:
    """Where agents connect on their own, because they know key and port before an engine exists.

    listening: keeps listening between engines, so that an agent can tell an engine's end from the runner's.
    within_s: how long an engine's agents may take to connect the first time; None: as long as later.
    """

    key: bytes
    listening: socket.socket
    within_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRequest:
    """What a command line requests from an engine. file: the engine's settings. tell: called when the engine waits."""

    nodes: int = 1
    file: Path | None = None
    tell: Callable[[str], None] = say


PLACES_LISTED = 8
"""The number of nodes that a note lists."""
AT_ONCE = 32
"""How many nodes report their state, or send a run's files, at the same time: each has a file open here."""
FILES = 128
"""Estimate of the files that a runner opens apart from those for its nodes: history, listeners, imports."""
FILES_PER_NODE = 2
"""The connection to a node, and the log to which the node's records are appended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What each of an engine's nodes has at least, as the cluster reports before allocation; None if unreported.

    whose: the node's name in messages. asks: the request to the cluster, a sentence. cores: logical. memory_bytes: the
    host's memory. gpus: the name of each GPU. notes: for the user. implausible: the number of implausible answers, by
    query. source: the cluster that gave these answers, as the metric names it.
    """

    whose: str
    asks: str
    cores: int | None = None
    memory_bytes: int | None = None
    gpus: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    implausible: Mapping[str, int] = field(default_factory=dict)
    source: Literal["slurm", "ray", ""] = ""


class AgentPlacement(Protocol):
    """Starts one agent on each node, and ends it: the only part in which cluster engines differ.

    name: the engine's name. nodes: the nodes' names, in order. address: the runner's address, reachable from all nodes.
    """

    name: str
    nodes: tuple[str, ...]
    address: str

    def start(self, meeting: Meeting) -> None:
        """Start the agents.

        Raises:
            InfrastructureFailed: the cluster cannot be reached, or does not provide these nodes.
        """

    def failure(self) -> str | None:
        """Return why an agent has ended or will not connect; None while all still may."""

    def left_s(self) -> float:
        """Return the seconds until the allocation ends; infinity if it does not."""

    def stop(self) -> None:
        """End the remaining agents."""


class ClusterEngine:
    """Runs trials on the nodes of a placement. Use it in a `with`: at its end no agent is left.

    runs: the runner's folder of runs, to which the nodes send their files.
    silent_s: see `AgentLink`. entrance: for agents that connect on their own; otherwise key and port are new.
    dropped: names of nodes to leave out, whose agents are not awaited. start_limit: the allocation's limit.
    tree: the source tree that agents and ranks run from, sent to each node; None: this program's. key: shared with
    other engines of the same agents.
    """

    def __init__(
        self,
        placement: AgentPlacement,
        runs: Path,
        *,
        tree: RankTree | None = None,
        key: bytes | None = None,
        silent_s: float = SILENT_S,
        entrance: Entrance | None = None,
        dropped: Iterable[str] = (),
        start_limit: StartLimit | None = None,
    ) -> None:
        self.name = placement.name
        self._placement, self.runs, self._log_sizes = placement, runs, LogSizes(runs)
        self._silent_s = silent_s
        self._start_limit = start_limit or StartLimit()
        self._first_s = None if entrance is None else entrance.within_s
        self._nodes: tuple[ReadyNode, ...] = ()
        self._links: dict[int, AgentLink] = {}
        self._ready: dict[int, Ready] = {}
        self._watched: set[str] = set()
        self._used: dict[str, int] = {}  # By run: the number of nodes that have its files.
        self._dropped = frozenset(dropped)
        require_files(FILES + FILES_PER_NODE * len(placement.nodes), f"a runner of {len(placement.nodes)} nodes")
        sweep_in_background()
        with ExitStack() as stack:
            self._threads = ChannelThreads()
            stack.callback(self._threads.close, STOP_S)
            key = key or (new_key() if entrance is None else entrance.key)
            folder = stack.enter_context(TemporaryFolder("observatory-key-"))
            write_key(folder / "key", key)
            lent = None if entrance is None else entrance.listening
            protocol = None if tree is None else tree.protocol
            self._listener = AgentListener(
                placement.address, key, expected=len(placement.nodes), lent=lent, protocol=protocol
            )
            stack.callback(self._listener.close)
            trees: tuple[str, ...] = ()
            if tree is not None:
                assert tree.archive is not None, "a tree for nodes is sent as an archive"
                server = TreeServer(placement.address, key, tree.archive, len(placement.nodes))
                stack.callback(server.close)
                trees = (f"{digest_of(tree.archive)}:{server.port}:{self._listener.port}",)
            stack.callback(placement.stop)
            self._begun_s = self._come_s = time.monotonic()  # The latter: when the last agent connected.
            placement.start(
                Meeting(host=placement.address, port=self._listener.port, key_file=folder / "key", trees=trees)
            )
            self._stack = stack.pop_all()

    def __enter__(self) -> ClusterEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def machine(self) -> Machine:
        """Wait for all agents; return the first node's machine.

        Raises:
            InfrastructureFailed: an agent does not connect or does not start.
        """
        first, *machines = (node.ready.machine for node in self.nodes())
        return replace(first, nodes_here=1 + sum(machine.hostname == first.hostname for machine in machines))

    def nodes(self) -> tuple[ReadyNode, ...]:
        """Wait for all agents; return their nodes by number.

        Raises:
            InfrastructureFailed: as `machine`.
        """
        if not self._nodes:
            self.meet_agents()
            names = self._placement.nodes
            for number, link in self._links.items():
                if number not in self._ready and names[number] not in self._dropped:
                    self._ready[number] = link.ready()
            self._nodes = tuple(
                ReadyNode(number=number, name=names[number], link=self._links[number], ready=ready)
                for number, ready in sorted(self._ready.items())
            )
            self.drop(self._dropped)
        return self._nodes

    def meet_agents(self) -> None:
        """Wait until all agents have connected; from then on they receive heartbeats while they load torch.

        Raises:
            InfrastructureFailed: an agent does not connect.
        """
        # A failure may belong to an agent that is left out.
        missing, reason = self._gather(LATE_S if self._dropped else 0.0)
        if missing:
            raise InfrastructureFailed(f"the agent of {', '.join(missing)} has not connected: {reason}")

    def drop_missing(self) -> dict[str, str]:
        """Wait for all agents, then leave out the nodes whose agents do not connect or start; return reasons by name.

        Raises:
            InfrastructureFailed: no agent connects.
        """
        missing, reason = self._gather(LATE_S)
        why = dict.fromkeys(missing, f"its agent has not connected: {reason}")
        for number, link in self._links.items():
            if number in self._ready:
                continue
            try:
                self._ready[number] = link.ready()
            except InfrastructureFailed as error:
                why[self._placement.nodes[number]] = str(error)
        if not self._ready:
            raise InfrastructureFailed("; ".join(f"{name}: {reason}" for name, reason in why.items()))
        self.drop(why)
        return why

    def drop(self, names: Iterable[str]) -> None:
        """Leave out the nodes of these names from now on; their agents are ended."""
        self._dropped |= frozenset(names)
        for number, link in self._links.items():
            if self._placement.nodes[number] in self._dropped:
                link.hang_up(0.0)
                self._ready.pop(number, None)
        self._nodes = tuple(node for node in self._nodes if node.name not in self._dropped)

    def check(self) -> tuple[NodeCheck, ...]:
        """Query the state and clock of all nodes, many at the same time; in the order of `nodes`.

        Raises:
            InfrastructureFailed: an agent is gone, or does not answer.
        """
        nodes = self.nodes()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return tuple(pool.map(lambda node: node.link.check(), nodes))

    def _gather(self, late_s: float) -> tuple[list[str], str | None]:
        """Accept agents until all have connected, or until `late_s` after a failure; return the missing nodes, and why.

        Not every placement identifies the node that failed to start.
        """
        within_s = self._start_limit.seconds if self._first_s is None else self._first_s
        deadline_s, why = time.monotonic() + within_s, None
        while missing := self._missing():
            reason = self._meet(deadline_s, within_s)
            if why is None and reason is not None:
                why, deadline_s = reason, min(deadline_s, time.monotonic() + late_s)
            if why is not None and time.monotonic() >= deadline_s:
                break
        if not missing and self._first_s is None:
            self._start_limit.took(self._come_s - self._begun_s)
        return missing, why

    def _missing(self) -> list[str]:
        """Return the names of the nodes whose agents are still awaited."""
        names = enumerate(self._placement.nodes)
        return [name for number, name in names if number not in self._links and name not in self._dropped]

    def _meet(self, deadline_s: float, within_s: float) -> str | None:
        """Accept the next agent; if none connects, return why there is no use in waiting, if there is a reason."""
        if (wire := self._listener.accept(LOOK_S)) is not None:
            assert wire.peer is not None, "the sides have met"
            number = wire.peer.node
            if number >= len(self._placement.nodes):
                wire.stream.close()
                raise InfrastructureFailed(f"an agent claims to run on node {number}, which this engine does not have")
            self._links[number] = AgentLink(
                wire.stream,
                lambda _: wire,
                log_sizes=self._log_sizes,
                name=f"the agent of {self._placement.nodes[number]}",
                silent_s=self._silent_s,
                start_limit=self._start_limit,
                threads=self._threads,
            )
            self._come_s = time.monotonic()
            return None
        reason = self._placement.failure()
        if reason is None and time.monotonic() >= deadline_s:
            return f"no contact for {within_s:.0f} s"
        return reason

    def run(self, order: TrialOrder, progress: Callable[[TrialProgress], None]) -> TrialEnded:
        """Run one trial on as many nodes as its case needs; return how it ended, once none of its ranks is left.

        Raises:
            InfrastructureFailed: an agent is gone, or does not answer.
            Misuse: the case needs more nodes.
        """
        nodes = self.nodes()
        if order.case.nodes > len(nodes):
            raise Misuse(f"{order.case.title} needs more nodes than this engine has ({len(nodes)}); increase --nodes")
        shares = spread(order.case.ranks, order.case.nodes)
        left_s = self._placement.left_s() - SPARE_S
        if left_s < LEAST_S:
            raise InfrastructureFailed(
                f"the allocation ends in {max(0.0, left_s + SPARE_S):.0f} s, too soon for another trial"
            )
        is_cut = left_s < order.limit_s
        order = msgspec.structs.replace(order, limit_s=min(order.limit_s, left_s))
        # Ranks that share a node meet in a file there.
        store = nodes[0].link.open_store(order.case.ranks) if order.case.nodes > 1 else None
        orders = [
            msgspec.structs.replace(order, node=node.number, first_rank=share[0], local_ranks=len(share), store=store)
            for node, share in zip(nodes, shares, strict=False)
        ]
        taking = nodes[: len(orders)]
        self._used[order.run] = max(len(taking), self._used.get(order.run, 0))
        if order.run not in self._watched:
            self._watched.add(order.run)
            for node in taking:
                node.link.watch(order.run, nodes=len(taking))
            for node in taking[1:]:  # The first node's file is machine.json.
                content = msgspec.json.format(msgspec.json.encode(node.ready.machine)) + b"\n"
                replace_file(self.runs / order.run / f"machine{node.number}.json", content)
            places = [_place(node, share) for node, share in zip(taking, shares, strict=True)]
            write_placement(self.runs / order.run, self.name, places)
        parts = Parts(taking, orders).run(progress)
        ended = joined(order, parts, str(self.runs / order.run))
        if is_cut and ended.outcome == "timed_out":
            raise InfrastructureFailed(
                f"the allocation had {left_s:.0f} s left for the trial, which did not end in that time"
            )
        return ended

    def collect(self, run: str) -> tuple[str, ...]:
        """Have the nodes send the files of a run; return notes.

        The first note lists the nodes of the ranks. Others name each file that did not arrive completely, and the
        nodes whose machines differ from most others.
        """
        taking = self._nodes[: self._used.pop(run, 0)]
        self._watched.discard(run)
        if not taking:
            return ()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            lines = [line for lines in pool.map(lambda node: _collect(node, run), taking) for line in lines]
        folder = self.runs / run
        try:
            for received in (folder, *folder.glob("trial*/")):
                sync_folder(received)
        except OSError as error:
            lines.append(f"{received} cannot be synced to the disk: {error.strerror}")
        return (*rank_places(folder, PLACES_LISTED), *lines, *_unlike_others(taking))

    def stop(self) -> None:
        """End the agents and their ranks; a second call does nothing."""
        for link in self._links.values():
            link.hang_up(0.0)
        deadline_s = time.monotonic() + STOP_S
        for link in self._links.values():
            link.join(max(0.0, deadline_s - time.monotonic()))
        self._links, self._ready, self._nodes = {}, {}, ()
        self._stack.close()


def _place(node: ReadyNode, ranks: range) -> NodePlace:
    """Return the placement of the ranks. Slurm reports the switches above a node if it knows the topology."""
    machine = node.ready.machine
    switch, _, _ = machine.environment.get("SLURM_TOPOLOGY_ADDR", "").rpartition(".")
    return NodePlace(
        number=node.number, name=node.name, host=machine.hostname, switch=switch or None, first_rank=ranks[0],
        ranks=len(ranks),
    )  # fmt: skip


def _unlike_others(nodes: Sequence[ReadyNode]) -> Iterator[str]:
    """Yield a line for each group of nodes that differs from most others in a way that may change a measurement."""
    alike: dict[tuple[MachineDifference, ...], list[ReadyNode]] = {}
    for node in nodes:
        alike.setdefault(differences_of_nodes(nodes[0].ready.machine, node.ready.machine), []).append(node)
    most = max(alike.values(), key=len)
    for others in alike.values():
        if others is not most:
            differences = differences_of_nodes(most[0].ready.machine, others[0].ready.machine)
            words = "; ".join(f"{each.field} is {each.now} instead of {each.before}" for each in differences)
            names = ", ".join(node.name for node in others[:PLACES_LISTED])
            more = f" and {len(others) - PLACES_LISTED} more" if len(others) > PLACES_LISTED else ""
            yield f"{names}{more} differ{'s' * (len(others) == 1)} from {most[0].name}: {words}"


def _collect(node: ReadyNode, run: str) -> list[str]:
    try:
        return [f"{node.name}: {line}" for line in node.link.collect(run)]
    except InfrastructureFailed as error:
        return [f"{node.name}: its last files did not arrive: {error}"]
