"""Agents that connect over TCP: only who has the key is taken, and one for each node."""

from __future__ import annotations

import argparse
import queue
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest

from bench.engines.wire.frames import SignedWire, StreamEnded, meet, new_key
from bench.engines.wire.tcp import (
    MOST_LOGGED,
    MOST_UNKNOWN,
    AgentListener,
    Unreached,
    address_of,
    connect,
    join_runner,
    listen,
)
from bench.errors import InfrastructureFailed

KEY = new_key()
WITHIN_S = 60.0


class Log(queue.SimpleQueue[str]):
    """What was refused."""

    def line(self) -> str:
        """The next line."""
        return self.get(timeout=WITHIN_S)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def listener(log: Log) -> Iterator[AgentListener]:
    with closing(AgentListener("127.0.0.1", KEY, log=log.put)) as made:
        yield made


@contextmanager
def _agent(listener: AgentListener, *, key: bytes = KEY, node: int = 0) -> Iterator[SignedWire]:
    stream = connect("127.0.0.1", listener.port)
    try:
        yield meet(stream, key, "agent", node=node)
    finally:
        stream.close()


def _next(listener: AgentListener) -> SignedWire:
    wire = listener.accept(WITHIN_S)
    assert wire is not None
    return wire


def test_each_node_is_taken_once(listener: AgentListener, log: Log) -> None:
    with _agent(listener, node=0), _agent(listener, node=1), _agent(listener, node=1) as twin:
        wires = [_next(listener), _next(listener)]
        assert sorted(wire.peer.node for wire in wires if wire.peer is not None) == [0, 1]
        with pytest.raises(StreamEnded):
            twin.receive()
        assert log.line().endswith(": node 1 already has an agent")
        for wire in wires:
            wire.stream.close()


def test_who_has_another_key_is_refused_and_logged(listener: AgentListener, log: Log) -> None:
    with pytest.raises((StreamEnded, OSError)), _agent(listener, key=new_key()):
        pass
    line = log.line()
    assert line.startswith("refused the connection from 127.0.0.1:")
    assert line.endswith(": a frame is not signed with the key for this connection")
    assert listener.accept(0.0) is None


def test_who_says_nothing_is_sent_away(log: Log) -> None:
    with (
        closing(AgentListener("127.0.0.1", KEY, meet_s=0.1, log=log.put)) as impatient,
        socket.create_connection(("127.0.0.1", impatient.port), timeout=WITHIN_S) as silent,
    ):
        assert silent.recv(1) == b""
        assert log.line().startswith("refused the connection from 127.0.0.1:")


def test_an_agent_is_met_though_silent_strangers_have_taken_all_places(listener: AgentListener, log: Log) -> None:
    address = ("127.0.0.1", listener.port)
    with ExitStack() as stack:
        strangers = [
            stack.enter_context(socket.create_connection(address, timeout=WITHIN_S)) for _ in range(MOST_UNKNOWN + 1)
        ]
        with _agent(listener):
            _next(listener).stream.close()
            assert strangers[0].recv(1) == b""  # The oldest.
            assert log.line().endswith(": too many connections have not yet proved that they have the key")


def test_refusals_of_many_strangers_take_a_bounded_number_of_lines(log: Log) -> None:
    with closing(AgentListener("127.0.0.1", KEY, log=log.put)) as listener:
        for _ in range(MOST_LOGGED + 5):
            stranger = socket.create_connection(("127.0.0.1", listener.port), timeout=WITHIN_S)
            with stranger, suppress(OSError):  # The listener may hang up at any step.
                stranger.sendall(b"x" * 100)
                stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(1):
                    pass
        with _agent(listener):
            _next(listener).stream.close()
    lines = [log.line() for _ in range(log.qsize())]
    assert len(lines) == MOST_LOGGED + 1
    assert lines[-1] == "refused 5 more connections"


def test_an_agent_tries_again_when_the_runner_hangs_up_before_they_have_met(log: Log) -> None:
    with listen("127.0.0.1", 0, expected=1) as lent, ThreadPoolExecutor(1) as pool:
        joining = pool.submit(join_runner, "127.0.0.1", lent.getsockname()[1], KEY, node=3, within_s=WITHIN_S)
        lent.accept()[0].close()
        with closing(AgentListener("127.0.0.1", KEY, log=log.put, lent=lent)) as listener:
            ours, theirs = _next(listener), joining.result(WITHIN_S)
            assert ours.peer is not None
            assert ours.peer.node == 3
            for wire in (ours, theirs):
                wire.stream.close()


def test_an_agent_that_is_never_met_gives_up_at_its_own_limit(listener: AgentListener) -> None:
    with pytest.raises((StreamEnded, OSError)):
        join_runner("127.0.0.1", listener.port, new_key(), node=0, within_s=0.1)


def test_an_agent_waits_for_a_runner_that_is_still_starting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    found: list[socket.socket] = []

    def listen() -> None:
        with socket.create_server(("127.0.0.1", port)) as late:
            found.append(late.accept()[0])

    with pytest.raises(OSError, match=rf"the runner at 127\.0\.0\.1:{port} cannot be reached: Connection refused"):
        connect("127.0.0.1", port, within_s=0.1)
    timer = threading.Timer(0.2, listen)
    timer.start()
    connect("127.0.0.1", port).close()
    timer.join()
    found[0].close()


def test_who_comes_between_two_listeners_waits_for_the_next(log: Log) -> None:
    with listen("127.0.0.1", 0, expected=1) as lent:
        closing_first = AgentListener("127.0.0.1", KEY, log=log.put, lent=lent)
        port = closing_first.port
        with _agent(closing_first):
            _next(closing_first).stream.close()
        closing_first.close()
        between = connect("127.0.0.1", port)
        with closing(AgentListener("127.0.0.1", KEY, log=log.put, lent=lent)) as second:
            assert second.port == port
            meet(between, KEY, "agent", node=0)
            _next(second).stream.close()
        between.close()
    with pytest.raises(Unreached):
        connect("127.0.0.1", port, within_s=0.1)


def test_a_port_that_is_taken_is_told() -> None:
    with (
        listen("127.0.0.1", 0, expected=1) as taken,
        pytest.raises(InfrastructureFailed, match=r"port \d+ of 127\.0\.0\.1 is taken by another program of yours"),
    ):
        listen("127.0.0.1", taken.getsockname()[1], expected=1)


def test_an_address_of_another_machine_cannot_be_listened_at() -> None:
    with pytest.raises(
        InfrastructureFailed, match=r"cannot listen for agents: cannot listen at 192\.0\.2\.1: Cannot assign"
    ):
        AgentListener("192.0.2.1", KEY)


@pytest.mark.parametrize("text", ["", "node0", "node0:", ":80", "node0:0", "node0:65536", "node0:x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not HOST:PORT"):
        address_of(text)


def test_an_address_may_be_of_ipv6() -> None:
    assert address_of("[::1]:80") == ("::1", 80)
    assert address_of("node0:80") == ("node0", 80)


def test_the_lowest_and_the_highest_port_are_ports_and_any_port_is_one_to_listen_at() -> None:
    assert [address_of(f"node0:{port}")[1] for port in (1, 65535)] == [1, 65535]
    assert address_of("node0:0", least_port=0) == ("node0", 0)
    for text in ("node0:0", "node0:65536"):
        with pytest.raises(argparse.ArgumentTypeError, match=f'"{text}" is not HOST:PORT'):
            address_of(text)
