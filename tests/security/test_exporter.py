"""What another user of the machine can do to an exporter and to those who look for one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import bcrypt
import pytest

from tests.security.users import User

pytestmark = pytest.mark.timeout(120)

_SCRAPES = 5
_SCRAPE = """
import sys, urllib.error, urllib.request
for _ in range(int(sys.argv[2])):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics", timeout=60) as answer:
            answer.read()
            print(answer.status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""
_DRIP = """
import socket, sys, time
port, head = int(sys.argv[1]), sys.argv[2].encode()
held = []
for number in range(90):
    client = socket.socket()
    client.bind((f"127.0.{number}.{number + 1}", 0))  # An address of its own for each.
    client.connect(("127.0.0.1", port))
    client.sendall(head)
    held.append(client)
print("held", flush=True)
while True:
    for client in held:
        try:
            client.send(b"x")
        except OSError:
            pass
    time.sleep(0.2)
"""
_GUESS = """
import base64, itertools, socket, sys, threading
def guess(words):
    for word in words:
        given = base64.b64encode(f"ana:{word}".encode()).decode()
        try:
            with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as client:
                client.sendall(f"GET /metrics HTTP/1.1\\r\\nAuthorization: Basic {given}\\r\\n\\r\\n".encode())
                client.recv(1)
        except OSError:
            pass
for number in range(40):
    threading.Thread(target=guess, args=(itertools.count(number, 40),)).start()
print("held", flush=True)
"""
_PIPELINE = """
import socket, sys, threading
def ask():
    while True:
        try:
            with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as client:
                client.sendall(b"GET /metrics HTTP/1.1\\r\\n\\r\\n" * 200)
                while client.recv(1 << 16):
                    pass
        except OSError:
            pass
for _ in range(40):
    threading.Thread(target=ask).start()
print("held", flush=True)
"""
_PRETEND = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"observatory_step_seconds 1\\n")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def _running(user: User, argv: list[str], stream: str, pattern: str) -> Iterator[re.Match[str]]:
    """A process of the user's, once it has printed this; ended with the context."""
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | {stream: subprocess.PIPE}
    with user.start(argv, **streams) as process:
        try:
            for line in getattr(process, stream):
                if (found := re.search(pattern, line)) is not None:
                    yield found
                    break
            else:
                pytest.fail(f"{argv} does not say {pattern}")
        finally:
            process.kill()


@contextmanager
def _serving(victim: User, *words: str) -> Iterator[int]:
    """The victim's exporter, by its port."""
    argv = [sys.executable, "-P", "-m", "bench", "serve", "--port", "0", "--results", "none", *words]
    with _running(victim, argv, "stderr", r"serving https?://127\.0\.0\.1:(\d+)/") as found:
        yield int(found[1])


@contextmanager
def _attacking(attacker: User, program: str, *words: str) -> Iterator[None]:
    with _running(attacker, [sys.executable, "-P", "-c", program, *words], "stdout", "held"):
        yield


@contextmanager
def _pretender(attacker: User) -> Iterator[int]:
    """The attacker's program that answers as an exporter, by its port."""
    with _running(attacker, [sys.executable, "-P", "-c", _PRETEND], "stdout", r"(\d+)") as found:
        yield int(found[1])


def _scrape(port: int, authorization: str | None = None) -> int:
    headers = {} if authorization is None else {"Authorization": authorization}
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        answer.read()
        status: int = answer.status
    return status


@pytest.mark.slow
@pytest.mark.parametrize("head", ["GET /metrics HTTP/1.1\r\nX: ", ""], ids=["dripping", "half-open"])
def test_connections_that_are_held_open_lock_no_scrape_out(victim: User, attacker: User, head: str) -> None:
    with _serving(victim) as port, _attacking(attacker, _DRIP, str(port), head):
        assert [_scrape(port) for _ in range(_SCRAPES)] == [200] * _SCRAPES


@pytest.mark.slow
def test_requests_without_a_pause_lock_no_scrape_out(victim: User, attacker: User) -> None:
    with _serving(victim) as port, _attacking(attacker, _PIPELINE, str(port)):
        said = victim.python(_SCRAPE, str(port), str(_SCRAPES))
    assert said.stdout.split() == ["200"] * _SCRAPES


@pytest.mark.slow
def test_guesses_of_a_password_lock_no_scrape_out(victim: User, attacker: User) -> None:
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(8)).decode()
    config = victim.home / "web.yml"
    config.write_text(f'basic_auth_users: {{ana: "{hashed}"}}\n')
    with _serving(victim, "--web-config", str(config)) as port:
        assert _scrape(port, "Basic YW5hOnJpZ2h0") == 200
        with _attacking(attacker, _GUESS, str(port)):
            assert [_scrape(port, "Basic YW5hOnJpZ2h0") for _ in range(_SCRAPES)] == [200] * _SCRAPES


def test_who_holds_the_exporters_port_is_named(victim: User, attacker: User) -> None:
    with _pretender(attacker) as port:
        said = victim.observatory("serve", "--port", str(port), "--results", "none")
    assert said.returncode == 4
    assert f"port {port} of 127.0.0.1 is taken by another program of the user with uid {attacker.uid};" in said.stderr
    assert "use that one" not in said.stderr


@pytest.mark.slow
def test_a_run_does_not_send_its_user_to_a_strangers_figures(victim: User, attacker: User, tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from bench.serve.server import serving
with serving(Path("runs"), None, port=int(sys.argv[1]), on_notice=print):
    pass
"""
    with _pretender(attacker) as port:
        said = victim.python(program, str(port))
    assert (
        f"taken by another program of the user with uid {attacker.uid}; choose another --port, because" in said.stdout
    )


def test_an_agent_takes_no_strangers_program_for_the_nodes_exporter(victim: User, attacker: User) -> None:
    program = """
import sys
from pathlib import Path
from bench.engines.node.node_exporter import NodeExporter
NodeExporter("127.0.0.1", int(sys.argv[1]), Path("runs"), tell=print).close()
"""
    with _pretender(attacker) as port:
        said = victim.python(program, str(port))
    assert f"of the user with uid {attacker.uid} (choose another port unless you trust it)" in said.stdout


def test_a_stranger_that_was_faster_is_not_taken_for_a_server_of_the_stack(victim: User, attacker: User) -> None:
    program = """
import sys
from pathlib import Path
from bench.errors import InfrastructureFailed
from bench.serve.stack.processes import Server, end, start, wait_until_ready
server = Server(name="agent", port=int(sys.argv[1]), ready="/healthz", command=("sleep", "60"))
Path("logs").mkdir()
process = start(server, Path.cwd())
try:
    wait_until_ready(server, process, limit_s=5)
except InfrastructureFailed as error:
    print(error)
finally:
    end([process])
"""
    with _pretender(attacker) as port:
        said = victim.python(program, str(port))
    assert f"port {port} is taken by another program of the user with uid {attacker.uid}" in said.stdout, said.stderr


_SHOW = """
import sys
from pathlib import Path
from bench.errors import InfrastructureFailed
from bench.serve.service_discovery import Target
for address in sys.argv[2:]:
    try:
        Target(Path(sys.argv[1]), address, {"by": str(Path.home())}).show()
    except InfrastructureFailed as error:
        print(error)
"""


def test_users_who_share_a_folder_of_targets_have_and_delete_their_own_files_alone(
    victim: User, attacker: User
) -> None:
    shared = victim.home.parent / "targets"
    shared.mkdir()
    shared.chmod(0o1777)
    attacker.python(_SHOW, str(shared), "old:1", "taken:1")
    victim.python(_SHOW, str(shared), "older:1", "mine:1")
    for name in ("old", "older"):
        os.utime(shared / f"{name}%3A1.json", (1, 1))
    os.mkfifo(shared / "pipe%3A1.json")
    os.chown(shared / "pipe%3A1.json", attacker.uid, attacker.uid)
    said = victim.python(_SHOW, str(shared), "new:1", "taken:1", "pipe:1")
    assert said.returncode == 0, said.stderr
    taken, pipe = said.stdout.splitlines()
    assert taken.endswith("taken%3A1.json: Operation not permitted; name a folder that this user may write")
    assert "pipe%3A1.json: Is a named pipe" in pipe
    said = attacker.python(_SHOW, str(shared), "mine:1")
    assert "mine%3A1.json: Operation not permitted" in said.stdout
    names = {path.name.partition("%")[0]: path.read_text() for path in shared.glob("*1.json") if path.is_file()}
    assert names.keys() == {"old", "taken", "mine", "new"}
    assert str(victim.home) in names["mine"]
    assert str(attacker.home) in names["taken"]
