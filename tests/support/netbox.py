"""A network in a box: temporary nodes on one machine, with their own addresses, names and slow links.

A node is a network namespace; a switch in another namespace joins the nodes. Nothing is visible outside: addresses are
always free, and boxes are isolated. It needs Linux, root and iproute2.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.support.servers import absent_server

TAG = "observatory-box"
INTERFACE = "eth0"
MTU_BYTES = 1500
LATENCY = "20ms"
BURST = "256kb"
PROGRAMS = ("ip", "tc", "unshare", "hostname")
RESOLVERS = Path("/etc/netns")
NAMED = Path("/run/netns")
CLONE_NEWNET = 0x40000000
KILL_LIMIT_S = 20.0
REFUSALS = ("Operation not permitted", "Permission denied", "Operation not supported", "Unknown device type")

_numbers = count()


class BoxLeft(RuntimeError):
    """A process or namespace of a box could not be removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node. namespace: its name for `ip netns`. interface: the name of its only link, inside the node."""

    number: int
    namespace: str
    hostname: str
    address: str
    interface: str = INTERFACE

    def sent_bytes(self) -> int:
        """Return the bytes that the node has sent since it was made, including headers of Ethernet, IP and TCP."""
        counter = f"/sys/class/net/{self.interface}/statistics/tx_bytes"
        return int(_output("ip", "netns", "exec", self.namespace, "cat", counter))

    def set_link(self, state: Literal["up", "down"]) -> None:
        """Disconnect the node from the others, or reconnect it with the same address."""
        _run("ip", "-n", self.namespace, "link", "set", self.interface, state)

    def set_rate(self, rate_mbit: float, latency: str = LATENCY) -> None:
        """Limit the node's sending to this rate, in place of any earlier limit. latency: see `netbox`."""
        bucket = ("tbf", "rate", f"{rate_mbit:g}mbit", "burst", BURST, "latency", latency)
        _run("tc", "-n", self.namespace, "qdisc", "replace", "dev", self.interface, "root", *bucket)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetBox:
    """Nodes that are ready, and the processes started on them."""

    nodes: tuple[Node, ...]
    started: list[subprocess.Popen[Any]] = field(default_factory=list)

    @contextlib.contextmanager
    def inside(self, node: int) -> Iterator[None]:
        """Run this thread, and what it starts, in the node's network; files and processes stay those of the machine."""
        libc = ctypes.CDLL(None, use_errno=True)
        with (
            Path("/proc/thread-self/ns/net").open() as before,
            NAMED.joinpath(self.nodes[node].namespace).open() as new,
        ):
            if libc.setns(new.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "the network of a node cannot be entered")
            try:
                yield
            finally:
                libc.setns(before.fileno(), CLONE_NEWNET)

    def run_in(self, node: int, command: Sequence[str | Path], **options: Any) -> subprocess.Popen[Any]:
        """Start the command on the node, in a new session; it ends with the box at the latest.

        options: of `subprocess.Popen`.
        """
        place = self.nodes[node]
        named = 'hostname "$0" && exec "$@"'
        inside = ["unshare", "--uts", "sh", "-c", named, place.hostname, *command]
        options.setdefault("start_new_session", True)
        process = subprocess.Popen(["ip", "netns", "exec", place.namespace, *inside], **options)
        self.started.append(process)
        return process


@contextlib.contextmanager
def netbox(nodes: int = 2, rate_mbit: float | None = 200, latency: str = LATENCY) -> Iterator[NetBox]:
    """Make a box of nodes, each of which sends at most at this rate; None: as fast as the kernel can.

    latency: how long a packet may wait in the queue before it is dropped; TCP then waits 200 ms or sends it again.

    The limit is a token bucket for sent bytes: the first 256 KiB after a pause are not slowed. Headers count, so
    payload reaches about 95 % of the rate.
    First removes boxes whose owner was killed. Skips without root, iproute2 or such a kernel.

    Raises:
        BoxLeft: a process or namespace of the box could not be removed.
    """
    _require()
    sweep()
    prefix = f"{TAG}-{os.getpid()}-{_start_ticks(os.getpid())}-{next(_numbers)}"
    places = tuple(
        Node(number=number, namespace=f"{prefix}-{number}", hostname=f"node{number}", address=f"10.77.0.{number + 1}")
        for number in range(nodes)
    )
    box = NetBox(nodes=places)
    try:
        _build(f"{prefix}-switch", places, rate_mbit, latency)
        yield box
    finally:
        for process in box.started:  # By their ids first: one may still be entering its namespace.
            process.kill()
            process.wait()
        _remove([*(place.namespace for place in places), f"{prefix}-switch"])


def sweep() -> list[str]:
    """Remove the boxes whose owner has ended; return their namespaces."""
    orphans = [name for name in namespaces() if not _is_owner_alive(name)]
    _remove(orphans)
    return orphans


def namespaces() -> list[str]:
    """Return the namespaces of all boxes on this machine."""
    names = _existing() | {path.name for path in RESOLVERS.glob(f"{TAG}-*")}
    return sorted(name for name in names if name.startswith(f"{TAG}-"))


def processes_in(namespace: str) -> list[int]:
    """Return the processes in the namespace, however they entered it."""
    listing = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    return [int(number) for number in listing.stdout.split()]


def _build(switch: str, places: Sequence[Node], rate_mbit: float | None, latency: str) -> None:
    hosts = "127.0.0.1 localhost\n" + "".join(f"{place.address} {place.hostname}\n" for place in places)
    try:
        for name in (switch, *(place.namespace for place in places)):
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
    except subprocess.CalledProcessError as error:
        _skip_if_refused(error)
        raise
    try:
        _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge", "up")
        # If bridged packets pass through the firewall, a firewall that drops by default would stop them.
        firewall = "/proc/sys/net/bridge/bridge-nf-call-iptables"
        _run("ip", "netns", "exec", switch, "sh", "-c", f"if [ -w {firewall} ]; then echo 0 >{firewall}; fi")
        for place in places:
            _join(place, switch, rate_mbit, latency)
            # Otherwise reverse look-ups would wait for a missing name server.
            folder = RESOLVERS / place.namespace
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(hosts)
            (folder / "resolv.conf").write_text("options timeout:1 attempts:1\n")
    except subprocess.CalledProcessError as error:
        _skip_if_refused(error)
        raise


def _join(place: Node, switch: str, rate_mbit: float | None, latency: str) -> None:
    """Connect the node to the switch, and limit its sending."""
    name, port, mtu = place.namespace, f"port{place.number}", ("mtu", str(MTU_BYTES))
    peer = ("type", "veth", "peer", "name", INTERFACE, *mtu, "netns", name)
    _run("ip", "-n", switch, "link", "add", port, *mtu, *peer)
    _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
    _run("ip", "-n", name, "address", "add", f"{place.address}/24", "dev", INTERFACE)
    _run("ip", "-n", name, "link", "set", INTERFACE, "up")
    if rate_mbit is not None:
        place.set_rate(rate_mbit, latency)


def _remove(names: Sequence[str]) -> None:
    """Kill the processes in the namespaces, then remove these; try all before raising an error."""
    left = []
    for name in names:
        if name in _existing():
            try:
                _kill(name)
                _run("ip", "netns", "delete", name)
            except BoxLeft as error:
                left.append(str(error))
            except subprocess.CalledProcessError as error:
                if name in _existing():  # Otherwise another sweep has already removed it.
                    left.append(f"{name}: {error.stderr.strip()}")
        shutil.rmtree(RESOLVERS / name, ignore_errors=True)
    with contextlib.suppress(OSError):  # Not empty: others have files there.
        RESOLVERS.rmdir()
    if left:
        raise BoxLeft(f"not removed: {'; '.join(left)}; see `ip netns list`, then `ip netns delete NAME`")


def _existing() -> set[str]:
    """Return all named network namespaces. A namespace that has an id is listed as "NAME (id: 0)"."""
    return {line.split()[0] for line in _output("ip", "netns", "list").splitlines() if line.strip()}


def _kill(namespace: str) -> None:
    """Kill until no process is left: one round may miss a process that forks."""
    deadline_s = time.monotonic() + KILL_LIMIT_S
    while running := processes_in(namespace):
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if time.monotonic() > deadline_s:
            raise BoxLeft(f"{namespace}: processes {running} do not end on SIGKILL after {KILL_LIMIT_S:g} s")
        time.sleep(0.01)


def _is_owner_alive(namespace: str) -> bool:
    owner, start_ticks = namespace.removeprefix(f"{TAG}-").split("-")[:2]
    return _start_ticks(int(owner)) == int(start_ticks)


def _start_ticks(process: int) -> int | None:
    """Return when the process started, in ticks since boot: process ids are reused, but not with the same start."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = status.rpartition(")")[2].split()
    return None if state in ("Z", "X") else int(fields[18])


def _require() -> None:
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        absent_server(f"the network in a box needs {', '.join(missing)} (apt-get install iproute2 util-linux hostname)")
    if os.geteuid() != 0:
        pytest.skip("the network in a box needs root")


def _skip_if_refused(error: subprocess.CalledProcessError) -> None:
    """Skip if the kernel refuses, as in a container without privileges; any other error is a bug."""
    stderr = str(error.stderr).strip()
    if any(words in stderr for words in REFUSALS):
        pytest.skip(f"the network in a box is refused here: `{' '.join(error.cmd)}` says: {stderr}")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
