"""What another user can do to a stack, whose servers listen where everybody on the machine reaches them."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from collectors.sockets import listen
from tests.security.users import User
from tests.support.servers import program

pytestmark = [pytest.mark.stack, pytest.mark.timeout(120)]

_ASK = """
import sys, urllib.error, urllib.request
for line in sys.argv[1:]:
    url, _, data = line.partition(" ")
    headers = {"Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data.encode() or None, headers), timeout=30) as answer:
            print(answer.status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""
_READ = """
import os, sys
opened = []
for folder, _, names in os.walk(sys.argv[1]):
    opened += [os.path.join(folder, name) for name in names]
print(opened)
for path in ("data/passwords/grafana", "prometheus.yml", "state.json"):
    try:
        open(os.path.join(sys.argv[1], path))
        print("opened", path)
    except PermissionError:
        pass
"""
_LISTEN = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    print("listens", flush=True)
    client, _ = server.accept()
    print(client.recv(10_000), flush=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The victim's stack."""

    folder: Path
    ports: dict[str, int]

    def url(self, server: str) -> str:
        """Where a server listens."""
        return f"http://127.0.0.1:{self.ports[server]}"


@pytest.fixture(scope="module")
def stack(users: tuple[User, User]) -> Iterator[Stack]:
    victim, _ = users
    for name in ("prometheus", "prometheus-alertmanager"):
        program(name, name)
    with ExitStack() as held:
        sockets = [held.enter_context(listen("127.0.0.1", 0)) for _ in range(3)]
        ports = dict(
            zip(("prometheus", "alertmanager", "grafana"), (one.getsockname()[1] for one in sockets), strict=True)
        )
    config = victim.home / "stack.toml"
    config.write_text("".join(f"[{name}]\nport = {port}\n" for name, port in ports.items()))
    folder = victim.home / "stack"
    begun = victim.observatory("stack", "up", "--config", str(config), "--folder", str(folder))
    assert begun.returncode == 0, begun.stderr
    yield Stack(folder=folder, ports=ports)
    ended = victim.observatory("stack", "down", "--folder", str(folder))
    assert ended.returncode == 0, ended.stderr


def test_nobody_else_silences_an_alert_or_reads_a_sample(stack: Stack, attacker: User) -> None:
    silence = {
        "matchers": [{"name": "alertname", "value": ".*", "isRegex": True}],
        "startsAt": "2020-01-01T00:00:00Z",
        "endsAt": "2040-01-01T00:00:00Z",
        "createdBy": "me",
        "comment": "quiet",
    }
    said = attacker.python(
        _ASK,
        f"{stack.url('alertmanager')}/api/v2/silences {json.dumps(silence)}",
        f"{stack.url('alertmanager')}/api/v2/alerts []",
        f"{stack.url('prometheus')}/api/v1/query?query=up",
        f"{stack.url('prometheus')}/-/ready",
    )
    assert said.stdout.split() == ["401"] * 4, said.stderr


def test_nobody_else_reads_a_file_of_the_stack(stack: Stack, attacker: User, victim: User) -> None:
    # The home itself might be open: the stack's folder keeps its own.
    victim.home.chmod(0o755)
    try:
        said = attacker.python(_READ, str(stack.folder))
    finally:
        victim.home.chmod(0o700)
    assert said.stdout == "[]\n", said.stderr


def test_its_owner_is_answered(stack: Stack, victim: User) -> None:
    said = victim.observatory("stack", "status", "--folder", str(stack.folder))
    assert f"{stack.url('prometheus')} has no target" in said.stderr


def test_the_password_is_shown_to_nobody_who_takes_the_port(stack: Stack, attacker: User, victim: User) -> None:
    for process in psutil.process_iter(["name", "uids"]):
        if process.info["uids"].real == victim.uid and process.info["name"] == "prometheus":
            process.send_signal(signal.SIGKILL)
            psutil.wait_procs([process], timeout=30)
    streams = {"stdout": -1}
    with attacker.start([sys.executable, "-c", _LISTEN, str(stack.ports["prometheus"])], **streams) as listening:
        assert listening.stdout is not None
        assert listening.stdout.readline() == "listens\n"
        words = ("stack", "status", "--folder", str(stack.folder))
        said = victim.observatory(*words)
        asked = victim.observatory(*words, "--prometheus", stack.url("prometheus"))
        listening.kill()
        assert listening.stdout.read() == ""
    assert (said.returncode, asked.returncode) == (4, 4)
    assert f"is taken by another program of the user with uid {attacker.uid}" in asked.stderr


def test_a_folder_of_another_user_is_not_used(attacker: User, victim: User) -> None:
    place = attacker.owns(victim.home.parent / "prepared", 0o777)
    said = victim.observatory("stack", "up", "--folder", str(place))
    assert said.returncode == 2
    assert f"{place} belongs to another user; name a folder of yours" in said.stderr
