"""The systemd unit is one that systemd takes, runs what the command line knows, and is shut in."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from bench.cli.watching.serve import command
from tests.security.users import two_users
from tests.support.servers import absent_server

UNIT = Path(__file__).parents[3] / "dashboards" / "stack" / "observatory.service"
MOST_EXPOSED = 25
"""Tenths of systemd's exposure level, from 0 to 100; "OK" ends at 50."""


def _settings(name: str) -> list[str]:
    """The values of a setting, in order."""
    lines = UNIT.read_text().splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(f"{name}=")]


def _analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        absent_server("systemd is not installed")
    return subprocess.run([analyze, *arguments], capture_output=True, text=True, timeout=60)


def test_systemd_finds_no_fault_with_it(tmp_path: Path) -> None:
    (started,) = _settings("ExecStart")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(started.split()[0], "/bin/true"))  # Ours is not installed here.
    verified = _analyze("verify", str(unit))
    assert (verified.returncode, verified.stderr) == (0, "")


def test_systemd_finds_it_shut_in() -> None:
    judged = _analyze("security", "--offline=true", f"--threshold={MOST_EXPOSED}", str(UNIT))
    assert judged.returncode == 0, judged.stdout


def test_it_starts_what_the_command_line_knows() -> None:
    (started,) = _settings("ExecStart")
    _, verb, *options = shlex.split(started)
    assert verb == "serve"
    asked = command.make_context(verb, options).params
    assert (asked["host"], asked["port"]) == ("0.0.0.0", 9464)
    (state,) = _settings("StateDirectory")
    assert asked["runs_folder"] == Path("/var/lib") / state / "runs"
    assert asked["of_all_users"]
    assert asked["store_url"] == f"sqlite:////var/lib/{state}/history.sqlite"


def test_the_group_writes_in_the_folder_of_runs_alone() -> None:
    """By the commands in the unit's head, as a member of the group that is not the service's user."""
    assert _settings("StateDirectoryMode") == ["0750"]
    with two_users() as (service, member):
        commands = re.findall(r"^#   (install -d .*)$", UNIT.read_text(), re.MULTILINE)
        assert len(commands) == 2
        home = service.home.parent / "state"
        for command in commands:
            words = command.replace("-o observatory -g observatory", f"-o {service.uid} -g {service.uid}")
            words = words.replace("/var/lib/parallel-observatory", str(home))
            subprocess.run(shlex.split(words), check=True)

        def may(*words: str) -> bool:
            who = ["--reuid", str(member.uid), "--regid", str(member.uid), "--groups", str(service.uid)]
            return subprocess.run(["setpriv", *who, "--", *words], capture_output=True).returncode == 0

        service.owns(home / "runs" / "of the service", 0o770)
        assert may("mkdir", str(home / "runs" / "own"))
        assert (home / "runs" / "own").stat().st_gid == service.uid  # So that the service reads what is --shared.
        assert not may("touch", str(home / ".nccl.conf"))
        assert not may("mv", str(home / "runs" / "of the service"), str(home / "runs" / "gone"))
        assert not may("mv", str(home / "runs"), str(home / "gone"))


def test_it_is_neither_root_nor_has_a_capability() -> None:
    assert _settings("User") == ["observatory"]
    assert _settings("NoNewPrivileges") == ["yes"]
    assert _settings("CapabilityBoundingSet") == _settings("AmbientCapabilities") == [""]


@pytest.mark.parametrize(
    ("setting", "hidden"),
    [("PrivateDevices", "the GPUs"), ("ProcSubset", "what the host does"), ("PrivateNetwork", "Prometheus")],
)
def test_it_is_not_shut_off_from_what_it_watches(setting: str, hidden: str) -> None:
    assert _settings(setting) == [], hidden
    assert _settings("DeviceAllow") == ["char-nvidia* rw"]
