"""`observatory stack`: real servers that one command starts, and of which another leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from bench.serve.stack import passwords
from bench.serve.stack.lifecycle import FEATURES
from dashboards.publishing.publish import RENDERED
from tests.support.servers import program

pytestmark = [pytest.mark.stack, pytest.mark.timeout(120)]

SERVERS = ("prometheus", "alertmanager", "grafana", "agent", "demo")


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Someone with a home and ports of their own. path: of programs."""

    home: Path
    ports: dict[str, int]
    path: str

    @property
    def folder(self) -> Path:
        """Where the stack is."""
        return self.home / "parallel-observatory" / "stack"

    def command(self, *words: str) -> list[str]:
        """The words of a command line."""
        return [sys.executable, "-P", "-m", "bench", "stack", *words]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a command."""
        return {**os.environ, "XDG_DATA_HOME": str(self.home), "PATH": self.path}

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self.command(*words), env=self.environment, capture_output=True, text=True, timeout=100, check=False
        )

    def ask(self, server: str, path: str) -> Any:
        """What a server answers."""
        password = passwords.read(self.folder, server)
        headers = {"Authorization": passwords.authorization(password)}
        asked = urllib.request.Request(f"http://127.0.0.1:{self.ports[server]}{path}", headers=headers)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return json.load(answer)

    def processes(self) -> list[psutil.Process]:
        """Processes that listen at the ports, or were started for the folder."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            words = " ".join(process.info["cmdline"] or ())
            is_of_folder = str(self.folder) in words and "stack" not in (process.info["cmdline"] or ())[3:5]
            is_agent = any(f"--port {self.ports[name]}" in words for name in ("agent", "demo"))
            if process.info["status"] != psutil.STATUS_ZOMBIE and (is_of_folder or is_agent):
                found.append(process)
        return found

    def left(self) -> list[str]:
        """The command lines of processes and the files that are left."""
        files = [self.home, *self.home.rglob("*")] if self.home.exists() else []
        return [*(str(process.info["cmdline"]) for process in self.processes()), *map(str, files)]


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [one.getsockname()[1] for one in held]


def _user(folder: Path) -> User:
    """A user without Grafana, whose settings are in stack.toml."""
    programs = folder / "programs"
    programs.mkdir()
    for name, package in (("prometheus", "prometheus"), ("prometheus-alertmanager", "prometheus-alertmanager")):
        (programs / name).symlink_to(program(name, package))
    ports = dict(zip(SERVERS, _free_ports(len(SERVERS)), strict=True))
    text = "".join(f"[{name}]\nport = {port}\n" for name, port in ports.items())
    (folder / "stack.toml").write_text(text.replace("[prometheus]\n", "[prometheus]\nscrape_seconds = 1\n"))
    return User(home=folder / "home", ports=ports, path=str(programs))


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    found = _user(tmp_path)
    yield found
    if found.left():
        found.call("down")
    assert found.processes() == []


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A stack that was started, and what the command said."""

    user: User
    said: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    folder = tmp_path_factory.mktemp("stack")
    found = _user(folder)
    said = found.call("up", "--demo", "--agent", "--config", str(folder / "stack.toml"))
    yield Begun(user=found, said=said)
    found.call("down")
    assert found.left() == []


def test_up_says_what_runs_where(begun: Begun) -> None:
    assert begun.said.returncode == 0, begun.said.stderr
    rows = {line.split()[0]: line.split()[1:] for line in begun.said.stdout.splitlines() if "http://127" in line}
    for name in ("agent", "demo", "alertmanager", "prometheus"):
        address, pid, state = rows[name]
        assert state == "runs"
        assert address == f"http://127.0.0.1:{begun.user.ports[name]}"
        assert psutil.pid_exists(int(pid))


def test_up_says_plainly_that_grafana_is_not_there(begun: Begun) -> None:
    assert "grafana is not installed, so nothing draws the dashboards" in begun.said.stdout


def test_up_says_where_the_passwords_are_and_nothing_shows_them(begun: Begun) -> None:
    folder = begun.user.folder / "data" / "passwords"
    assert f"passwords: in {folder}; log in as observatory, or to change Grafana as admin" in begun.said.stdout
    said = begun.said.stdout + begun.said.stderr
    lines = [" ".join(process.cmdline()) for process in begun.user.processes()]
    logs = [path.read_text() for path in (begun.user.folder / "logs").iterdir()]
    for server in ("prometheus", "alertmanager", "grafana"):
        assert (folder / server).stat().st_mode & 0o777 == 0o600
        assert not any(passwords.read(begun.user.folder, server) in text for text in (said, *lines, *logs))


def test_prometheus_stores_our_series_of_each_target(begun: Begun) -> None:
    assert begun.said.stderr.splitlines()[-1].startswith("waiting until each target was scraped")
    until_s = time.monotonic() + 60  # On a busy machine a scrape may miss its limit of 10 s.
    while (said := begun.user.call("status", "--format", "json")).returncode:
        assert time.monotonic() < until_s, said.stderr
        time.sleep(1)
    targets = {target["target"]: target for target in json.loads(said.stdout)["targets"]}
    for name in ("agent", "demo"):
        assert targets[f"127.0.0.1:{begun.user.ports[name]}"]["series"] > 50


def test_prometheus_has_every_rule_and_tells_alertmanager(begun: Begun) -> None:
    groups = yaml.safe_load((RENDERED / "rules.yaml").read_text())["groups"]
    loaded = begun.user.ask("prometheus", "/api/v1/rules")["data"]["groups"]
    assert {group["name"]: len(group["rules"]) for group in loaded} == {
        group["name"]: len(group["rules"]) for group in groups
    }
    (manager,) = begun.user.ask("prometheus", "/api/v1/alertmanagers")["data"]["activeAlertmanagers"]
    assert manager["url"] == f"http://127.0.0.1:{begun.user.ports['alertmanager']}/api/v2/alerts"


def test_prometheus_keeps_samples_for_thirty_days_and_exemplars(begun: Begun) -> None:
    flags = begun.user.ask("prometheus", "/api/v1/status/flags")["data"]
    assert flags["storage.tsdb.retention.time"] == "30d"
    assert flags["enable-feature"] == FEATURES
    runtime = begun.user.ask("prometheus", "/api/v1/status/runtimeinfo")["data"]
    assert runtime["reloadConfigSuccess"] is True


def test_all_listen_on_the_loopback_address_alone(begun: Begun) -> None:
    for process in begun.user.processes():
        listening = [one.laddr.ip for one in process.net_connections() if one.status == psutil.CONN_LISTEN]
        assert listening == ["127.0.0.1"], process.name()


def test_a_stack_that_is_up_is_not_started_again(begun: Begun) -> None:
    said = begun.user.call("up")
    assert said.returncode == 2
    assert f"a stack is up already, with Prometheus at http://127.0.0.1:{begun.user.ports['prometheus']}" in said.stderr


def test_a_taken_port_is_named_with_the_key_that_changes_it(begun: Begun, tmp_path: Path) -> None:
    config = begun.user.home.parent / "stack.toml"
    said = begun.user.call("up", "--config", str(config), "--folder", str(tmp_path / "other"))
    assert said.returncode == 4
    assert (
        "is taken by another program of yours; end that program, or set another port: alertmanager.port" in said.stderr
    )
    assert not (tmp_path / "other").exists()


def test_a_prometheus_without_our_series_names_the_target(user: User, tmp_path: Path) -> None:
    config = str(tmp_path / "stack.toml")
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    (fleet / "node.json").write_text(json.dumps([{"targets": ["127.0.0.1:1"]}]))
    assert user.call("up", "--targets", str(fleet), "--config", config).returncode == 0
    said = user.call("status", "--prometheus", f"http://127.0.0.1:{user.ports['prometheus']}")
    assert said.returncode == 4
    assert "target 127.0.0.1:1 (job observatory) is missing: " in said.stderr
    assert "connection refused; is `observatory serve` running there?" in said.stderr


def test_a_server_that_died_is_named(user: User, tmp_path: Path) -> None:
    assert user.call("up", "--demo", "--config", str(tmp_path / "stack.toml")).returncode == 0
    (demo,) = [process for process in user.processes() if "--demo" in process.cmdline()]
    demo.kill()
    said = user.call("status", "--format", "json")
    assert said.returncode == 4
    assert f"demo (process {demo.pid}) has ended" in said.stderr
    states = {row["server"]: row["state"] for row in json.loads(said.stdout)["servers"]}
    assert states == {"demo": "ended", "prometheus": "runs", "alertmanager": "runs"}
    again = user.call("up")
    assert again.returncode == 2
    assert (
        f"a stack is up in {user.folder}, of which demo ended; `observatory stack down --keep-data` ends"
        in again.stderr
    )


def test_down_ends_servers_whose_state_is_gone(user: User, tmp_path: Path) -> None:
    assert user.call("up", "--config", str(tmp_path / "stack.toml")).returncode == 0
    (user.folder / "state.json").unlink()
    said = user.call("down")
    assert said.returncode == 0, said.stderr
    assert "of a stack without its state.json" in said.stderr
    assert user.processes() == []


def test_an_up_that_is_interrupted_while_it_waits_for_targets_says_that_the_stack_goes_on(
    user: User, tmp_path: Path
) -> None:
    fleet = str(tmp_path / "fleet")
    words = user.command("up", "--targets", fleet, "--config", str(tmp_path / "stack.toml"))
    with subprocess.Popen(words, env=user.environment, stderr=subprocess.PIPE, text=True) as command:
        assert command.stderr is not None
        said: list[str] = []
        while not any("waiting until each target" in line for line in said):
            said.append(command.stderr.readline())
            assert said[-1], said
        command.send_signal(signal.SIGINT)
        assert "the stack keeps running" in command.stderr.read()
        assert command.wait(60) == 130
    assert any(f"{fleet} does not exist yet" in line for line in said)
    assert user.processes() != []


def test_data_is_kept_where_that_is_asked_for(user: User, tmp_path: Path) -> None:
    config = str(tmp_path / "stack.toml")
    assert user.call("up", "--config", config).returncode == 0
    assert user.call("down", "--keep-data").returncode == 0
    assert sorted(path.name for path in user.folder.iterdir()) == ["data"]
    kept = passwords.read(user.folder, "grafana")
    assert user.call("up", "--config", config).returncode == 0
    assert passwords.read(user.folder, "grafana") == kept
    said = user.call("down")
    assert f"deleting {user.folder} with" in said.stderr
    assert not user.folder.exists()


def test_data_that_was_kept_is_deleted_by_another_down(user: User, tmp_path: Path) -> None:
    assert user.call("up", "--config", str(tmp_path / "stack.toml")).returncode == 0
    kept = user.call("down", "--keep-data")
    assert "another `down` deletes it" in kept.stderr
    (user.folder / "data" / "notes.txt").write_text("mine")
    again = user.call("down", "--keep-data")
    assert again.returncode == 2
    assert "leave out --keep-data to delete it" in again.stderr
    assert (user.folder / "data" / "prometheus" / "wal").is_dir()
    said = user.call("down")
    assert said.returncode == 0
    assert "no stack is up; deleting" in said.stderr
    assert [str(path.relative_to(user.folder)) for path in user.folder.rglob("*")] == ["data", "data/notes.txt"]
    assert user.call("down").returncode == 2


def test_a_server_that_does_not_start_takes_the_others_down(user: User, tmp_path: Path) -> None:
    kept = user.folder / "data" / "prometheus" / "wal"
    kept.parent.mkdir(parents=True)
    kept.write_text("no folder")
    said = user.call("up", "--config", str(tmp_path / "stack.toml"))
    assert said.returncode == 4
    assert "prometheus ended at its start: " in said.stderr
    assert user.processes() == []
    assert [path.name for path in user.folder.iterdir()] == ["data"]  # It was there before.
    assert kept.read_text() == "no folder"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_an_interrupted_up_leaves_nothing(user: User, tmp_path: Path, number: signal.Signals) -> None:
    words = user.command("up", "--demo", "--config", str(tmp_path / "stack.toml"))
    with subprocess.Popen(words, env=user.environment, stderr=subprocess.PIPE, text=True) as command:
        assert command.stderr is not None
        assert command.stderr.readline().startswith("demo starts at ")
        command.send_signal(number)
        assert command.wait(60) == 130
    assert user.left() == []


def test_down_finds_all_of_a_stack_whose_up_was_killed(user: User, tmp_path: Path) -> None:
    words = user.command("up", "--demo", "--config", str(tmp_path / "stack.toml"))
    with subprocess.Popen(words, env=user.environment, stderr=subprocess.PIPE, text=True) as command:
        assert command.stderr is not None
        assert command.stderr.readline().startswith("demo starts at ")
        command.kill()
    # A server that it was starting has the command's own words until its program is loaded.
    while any(process.info["cmdline"] == words for process in psutil.process_iter(["cmdline"])):
        time.sleep(0.1)
    time.sleep(0.5)
    assert user.processes() != []
    assert user.call("down").returncode == 0
    assert user.left() == []


def test_without_programs_and_containers_both_are_named(user: User, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    nowhere = User(home=user.home, ports=user.ports, path=str(tmp_path / "empty"))
    said = nowhere.call("up", "--demo")
    assert said.returncode == 4
    assert "not installed: prometheus and alertmanager" in said.stderr
    assert "there is no docker to run them in containers" in said.stderr
    assert user.left() == []


_GRAFANA = f"""#!{sys.executable}
import configparser, http.server, sys
read = configparser.ConfigParser()
read.read([word.partition("=")[2] for word in sys.argv if word.startswith("--config=")])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/api/health" else 404)
        self.end_headers()
assert sys.argv[1] == "server"
address = read["server"]["http_addr"], read["server"].getint("http_port")
http.server.HTTPServer(address, Handler).serve_forever()
"""
"""What the stack asks of a Grafana, which no registry of packages has: its settings' file, and that it is healthy."""


def test_a_grafana_that_is_installed_is_started_with_its_settings(user: User, tmp_path: Path) -> None:
    path = tmp_path / "programs" / "grafana"
    path.write_text(_GRAFANA)
    path.chmod(0o755)
    said = user.call("up", "--config", str(tmp_path / "stack.toml"))
    assert said.returncode == 0, said.stderr
    assert f"http://127.0.0.1:{user.ports['grafana']}" in said.stdout
    assert "grafana is not installed" not in said.stdout
