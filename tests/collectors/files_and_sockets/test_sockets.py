"""Listening sockets are opened in one place, which says whose a port is."""

from __future__ import annotations

import os
import socket

import pytest

from collectors.sockets import CannotListen, PortTaken, holder_of, is_held_by_us, listen, network_of, uids_at


@pytest.mark.parametrize("listening", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_the_owner_of_a_port_is_read_from_the_kernel(listening: str) -> None:
    try:
        held = listen(listening, 0)
    except CannotListen as error:
        pytest.skip(f"no such address here: {error}")
    asked = "::1" if listening == "::1" else "127.0.0.1"
    with held:
        port = held.getsockname()[1]
        assert uids_at(asked, port) == {os.getuid()}
        assert is_held_by_us(asked, port)
        assert uids_at("127.0.0.9", port) == (set() if listening in ("127.0.0.1", "::1") else {os.getuid()})
    assert uids_at(asked, port) == set()
    assert holder_of(asked, port) == "another program"


def test_a_port_that_is_taken_is_refused_with_its_owner() -> None:
    with (
        listen("127.0.0.1", 0) as held,
        pytest.raises(PortTaken, match="is taken by another program of yours") as found,
    ):
        listen("127.0.0.1", held.getsockname()[1])
    assert found.value.is_ours


def test_connections_have_no_part_in_who_listens() -> None:
    with listen("127.0.0.1", 0) as held, socket.create_connection(held.getsockname()) as client:
        assert uids_at("127.0.0.1", client.getsockname()[1]) == set()


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("127.0.0.1", "this machine"),
        ("127.8.9.1", "this machine"),
        ("::1", "this machine"),
        ("::ffff:127.0.0.1", "this machine"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_clients_are_counted_by_what_one_of_them_has_at_least(host: str, network: str) -> None:
    assert network_of((host, 1), ("127.0.0.1", 2)) == network


@pytest.mark.parametrize(
    ("listening", "connected"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.8.9.1"), ("::1", "::1"), ("::", "127.0.0.1"), ("::", "::1")],
)
def test_a_client_of_this_machine_is_counted_with_those_of_its_user(listening: str, connected: str) -> None:
    try:
        held = listen(listening, 0)
    except CannotListen as error:
        pytest.skip(f"no such address here: {error}")
    with held, socket.create_connection((connected, held.getsockname()[1])) as client:
        served, address = held.accept()
        with served:
            assert network_of(address, served.getsockname()) == f"uid {os.getuid()} on this machine"
            client.close()  # The kernel would now call it root's.
            assert network_of(address, served.getsockname()) == "this machine"


def test_who_listens_at_the_port_of_a_client_is_not_taken_for_the_client() -> None:
    with listen("127.0.0.1", 0) as held:
        assert network_of(held.getsockname(), ("127.0.0.1", 1)) == "this machine"
