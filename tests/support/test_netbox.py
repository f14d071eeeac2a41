"""The network in a box joins its nodes, and leaves nothing behind however its owner ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.netbox import RESOLVERS, TAG, NetBox, namespaces, netbox, processes_in, sweep

ROOT = Path(__file__).parents[2]

DAEMON = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
sys.stdout.write(f"{os.getpid()}\\n")
sys.stdout.flush()
os.close(1)
time.sleep(600)
"""
"""A process that leaves its parent and its session, and prints its id."""

OWNER = """
import subprocess, time
from tests.support.netbox import netbox
with netbox(nodes=1) as box:
    sleeper = box.run_in(0, ["sleep", "600"])
    echo = box.run_in(0, ["echo", "on the node"], stdout=subprocess.DEVNULL)
    assert echo.wait() == 0
    print(box.nodes[0].namespace, sleeper.pid, flush=True)
    time.sleep(600)
"""


def answer(box: NetBox, node: int, code: str) -> str:
    """Return what a Python program prints on the node."""
    with box.run_in(node, [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True) as program:
        output, _ = program.communicate(timeout=30)
    assert program.returncode == 0
    return str(output).strip()


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in ("Z", "X")


def links() -> set[str]:
    """Return the names of the links outside all boxes."""
    return {path.name for path in Path("/sys/class/net").iterdir()}


def daemon_in(box: NetBox) -> int:
    with box.run_in(0, [sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, text=True) as program:
        output, _ = program.communicate(timeout=30)
    process = int(output)
    assert is_running(process)
    return process


def assert_gone(box: NetBox, *processes: int) -> None:
    for node in box.nodes:
        assert node.namespace not in namespaces()
        assert not (RESOLVERS / node.namespace).exists()
    for process in processes:
        assert not is_running(process)


def test_nodes_reach_each_other_by_name() -> None:
    serving = """
        import socket
        with socket.create_server(("10.77.0.1", 5000)) as server:
            print("ready", flush=True)
            connection, (address, _) = server.accept()
            print(connection.recv(99).decode(), "from", address)
    """
    sending = """
        import socket
        with socket.create_connection(("node0", 5000)) as connection:
            connection.send(socket.gethostname().encode())
    """
    with netbox(nodes=2) as box:
        command = [sys.executable, "-c", textwrap.dedent(serving)]
        with box.run_in(0, command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            answer(box, 1, sending)
            assert server.stdout.read() == "node1 from 10.77.0.2\n"


def test_a_node_has_a_name_of_its_own() -> None:
    with netbox(nodes=2) as box:
        assert answer(box, 1, "import socket; print(socket.gethostname())") == "node1"
        assert os.uname().nodename not in ("node0", "node1")


def test_what_a_node_sends_is_counted() -> None:
    with netbox(nodes=2, rate_mbit=None) as box:
        before = box.nodes[0].sent_bytes()
        answer(
            box,
            0,
            """
            import socket
            sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            for _ in range(10):
                sender.sendto(bytes(1000), ("node1", 9))
            """,
        )
        headers_bytes = 14 + 20 + 8  # Ethernet, IP, UDP.
        # The node also asks for its neighbour's address.
        assert 10 * (1000 + headers_bytes) <= box.nodes[0].sent_bytes() - before <= 10 * (1000 + headers_bytes) + 1000


@pytest.mark.parametrize(("rate_mbit", "queue"), [(50, "rate 50Mbit"), (200, "rate 200Mbit"), (None, "noqueue")])
def test_a_node_sends_through_a_queue_of_its_rate(rate_mbit: float | None, queue: str) -> None:
    with netbox(nodes=1, rate_mbit=rate_mbit) as box:
        show = ["tc", "-n", box.nodes[0].namespace, "qdisc", "show", "dev", box.nodes[0].interface]
        assert queue in subprocess.run(show, check=True, capture_output=True, text=True).stdout


def test_packets_wait_their_turn_as_long_as_is_said() -> None:
    with netbox(nodes=1, latency="400ms") as box:
        show = ["tc", "-n", box.nodes[0].namespace, "qdisc", "show", "dev", box.nodes[0].interface]
        assert "lat 400ms" in subprocess.run(show, check=True, capture_output=True, text=True).stdout


def test_two_boxes_share_addresses_and_do_not_meet() -> None:
    with netbox(nodes=2) as first, netbox(nodes=2) as second:
        assert {node.address for node in first.nodes} == {node.address for node in second.nodes}
        assert not {node.namespace for node in first.nodes} & {node.namespace for node in second.nodes}


def test_a_box_adds_no_link_outside_and_leaves_nothing() -> None:
    before, had_resolvers = links(), RESOLVERS.exists()
    with netbox(nodes=2) as box:
        assert links() == before
        process = daemon_in(box)
    assert_gone(box, process)
    assert links() == before
    assert RESOLVERS.exists() == had_resolvers


def test_a_box_is_gone_after_an_exception() -> None:
    box, processes = None, []

    def fail_inside() -> None:
        nonlocal box
        with netbox(nodes=2) as box:
            processes.append(daemon_in(box))
            processes.append(box.run_in(1, ["sleep", "600"]).pid)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert box is not None
    assert len(processes) == 2
    assert_gone(box, *processes)


def test_a_box_whose_owner_was_killed_goes_when_the_next_begins() -> None:
    with netbox(nodes=1):  # Skips if this machine cannot make boxes.
        pass
    with subprocess.Popen([sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            namespace, sleeper = owner.stdout.readline().split()
            sweep()
            assert namespace in namespaces()  # Its owner lives.
        finally:
            owner.send_signal(signal.SIGKILL)
    assert int(sleeper) in processes_in(namespace)
    with netbox(nodes=1):
        assert namespace not in namespaces()
    assert not is_running(int(sleeper))


def test_a_process_that_got_its_owners_number_does_not_keep_a_box() -> None:
    with netbox(nodes=1):
        namespace = f"{TAG}-{os.getpid()}-1-0-0"  # As if an earlier process with this process's id had made it.
        subprocess.run(["ip", "netns", "add", namespace], check=True)
        assert sweep() == [namespace]
        assert namespace not in namespaces()


def test_without_iproute2_the_test_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(pytest.skip.Exception, match="iproute2"), netbox():
        pass
