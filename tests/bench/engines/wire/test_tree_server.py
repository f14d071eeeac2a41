"""A source tree on its way to the nodes: each agent with the key gets it whole, whatever becomes of the others."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import msgspec
import pytest

from bench.engines.wire.frames import SignedWire, StreamEnded, new_key
from bench.engines.wire.tcp import MOST_UNKNOWN, join_runner
from bench.engines.wire.trees import PIECE_BYTES, TreeSent, TreeServer
from bench.errors import InfrastructureFailed

KEY = new_key()
ARCHIVE = bytes(range(256)) * (PIECE_BYTES // 256 * 2) + b"the last piece is a short one"
WITHIN_S = 60.0
NODES = 7


@pytest.fixture(scope="module")
def server() -> Iterator[TreeServer]:
    """Serves all tests that do not close it; each node can connect once."""
    with closing(TreeServer("127.0.0.1", KEY, ARCHIVE, NODES)) as made:
        yield made


def _join(server: TreeServer, node: int, key: bytes = KEY) -> SignedWire:
    return join_runner("127.0.0.1", server.port, key, node=node, within_s=0.1)


def _size(wire: SignedWire) -> int:
    return msgspec.json.decode(wire.receive(), type=TreeSent).size


def test_each_node_gets_the_tree_whole_in_pieces_and_then_the_server_hangs_up(server: TreeServer) -> None:
    for node in (0, 1):
        wire = _join(server, node)
        with closing(wire.stream):
            assert _size(wire) == len(ARCHIVE)
            pieces = [wire.receive() for _ in range(3)]
            assert [len(piece) for piece in pieces] == [PIECE_BYTES, PIECE_BYTES, len(ARCHIVE) - 2 * PIECE_BYTES]
            assert b"".join(pieces) == ARCHIVE
            with pytest.raises(StreamEnded, match="hung up"):
                wire.receive()


def test_a_node_that_reads_nothing_holds_no_other_up(server: TreeServer) -> None:
    slow, quick = _join(server, 2), _join(server, 3)
    with closing(slow.stream), closing(quick.stream):
        assert _size(quick) == len(ARCHIVE)
        assert b"".join(quick.receive() for _ in range(3)) == ARCHIVE


def test_a_node_that_dies_while_it_receives_ends_only_its_own_transfer(server: TreeServer) -> None:
    dying = _join(server, 4)
    assert _size(dying) == len(ARCHIVE)
    dying.stream.abort()
    dying.stream.close()
    wire = _join(server, 5)
    with closing(wire.stream):
        assert _size(wire) == len(ARCHIVE)
        assert b"".join(wire.receive() for _ in range(3)) == ARCHIVE


def test_who_has_another_key_gets_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with closing(TreeServer("127.0.0.1", KEY, ARCHIVE, 1)) as server, pytest.raises((StreamEnded, OSError)):
        _join(server, 0, new_key())
    assert "refused the connection from 127.0.0.1:" in capsys.readouterr().err


def test_each_node_has_a_place_though_strangers_have_taken_theirs(server: TreeServer) -> None:
    address = ("127.0.0.1", server.port)
    with ExitStack() as stack:
        places = MOST_UNKNOWN + NODES - 1  # All but one.
        strangers = [stack.enter_context(socket.create_connection(address, timeout=WITHIN_S)) for _ in range(places)]
        wire = _join(server, 6)
        with closing(wire.stream):
            assert _size(wire) == len(ARCHIVE)
        assert select.select(strangers, [], [], 0.0)[0] == []  # Nobody was sent away.


def test_a_server_that_nobody_closes_keeps_no_process_from_ending(server: TreeServer) -> None:
    assert server.port
    threads = [thread for thread in threading.enumerate() if thread.name == "sending the source tree"]
    assert [thread.daemon for thread in threads] == [True]


def test_a_closed_server_admits_nobody() -> None:
    server = TreeServer("127.0.0.1", KEY, ARCHIVE, 1)
    port = server.port
    server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)


def test_another_hosts_address_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(InfrastructureFailed, match="cannot listen for agents"):
        TreeServer("192.0.2.1", KEY, ARCHIVE, 1)
