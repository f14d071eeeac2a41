"""What killed processes leave in TMPDIR is removed, and nothing that lives, belongs to others or is none of ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest

from bench.engines.wire.frames import SignedWire, new_key, write_key
from bench.engines.wire.tcp import AgentListener
from bench.machine.temporary_folders import CONTENTS, LOCK, UNLOCKED_S, TemporaryFolder, check_tmpdir, sweep
from tests.bench.made.small_disk import on_a_small_disk
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

WITHIN_S = 100.0


@pytest.fixture
def temporary(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of this test alone."""
    monkeypatch.setenv("TMPDIR", str(short_path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # Where Python remembers the folder.
    return short_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def left(folder: Path, *, is_dry: bool = False) -> dict[str, str | None]:
    """Sweep; return why each folder was left, by name."""
    assert folder == Path(tempfile.gettempdir())
    return {swept.path.name: swept.left for swept in sweep(is_dry=is_dry)}


def of_a_killed_process(prefix: str) -> Path:
    """Return a folder whose process has killed itself while it used it."""
    program = (
        "import os, signal, sys\n"
        "from bench.machine.temporary_folders import TemporaryFolder\n"
        "folder = TemporaryFolder(sys.argv[1]).path\n"
        "(folder / 'some' / 'more').mkdir(parents=True)\n"
        "(folder / 'some' / 'more' / 'file').write_text('x')\n"
        "print(folder, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-P", "-c", program, prefix], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    return Path(killed.stdout.strip())


@pytest.mark.parametrize("prefix", CONTENTS)
def test_a_folder_of_a_killed_process_is_removed_and_one_in_use_is_not(prefix: str, temporary: Path) -> None:
    dead = of_a_killed_process(prefix)
    with TemporaryFolder(prefix) as alive:  # type: ignore[arg-type]  # One of CONTENTS.
        assert left(temporary, is_dry=True)[dead.name] is None
        assert dead.exists()
        reasons = left(temporary)
        assert not dead.exists()
        assert (reasons[dead.name], alive.is_dir()) == (None, True)
        assert f"process {os.getpid()} (" in str(reasons[alive.name])
    assert names(temporary) == []


def test_a_folder_that_a_process_is_about_to_lock_is_left(temporary: Path) -> None:
    (young := temporary / "observatory-node-young").mkdir()
    (unnamed := temporary / "observatory-key-unnamed").mkdir()
    (unnamed / LOCK).touch()
    reasons = left(temporary)
    assert reasons[young.name] == reasons[unnamed.name] == "it has no lock, and changed 0.0 days ago (limit: 7 days)"


def test_a_folder_of_an_earlier_version_is_removed_when_nothing_in_it_has_changed_for_days(temporary: Path) -> None:
    for name in ("observatory-node-old", "observatory-node-busy", "pymp-old"):
        (temporary / name / "run").mkdir(parents=True)
        (temporary / name / "run" / "rank0.jsonl").touch()
        before_s = time.time() - UNLOCKED_S - 60
        for path in (temporary / name / "run" / "rank0.jsonl", temporary / name / "run", temporary / name):
            os.utime(path, (before_s, before_s))
    (temporary / "observatory-node-busy" / "run" / "rank0.jsonl").write_text("a line")
    reasons = left(temporary)
    assert names(temporary) == ["observatory-node-busy", "pymp-old"]
    assert reasons["pymp-old"] == "it has no lock of this program, so another program may use it"


def test_no_link_is_followed(temporary: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (victim / "inner").mkdir(parents=True)
    (victim / LOCK).touch()
    (temporary / "observatory-node-link").symlink_to(victim)
    dead = of_a_killed_process("observatory-node-")
    (dead / "inner").symlink_to(victim)
    locked = of_a_killed_process("observatory-key-")
    (locked / LOCK).unlink()
    (locked / LOCK).symlink_to(victim / LOCK)
    reasons = left(temporary)
    assert reasons["observatory-node-link"] == "it is a link"
    assert reasons[dead.name] is None
    assert reasons[locked.name] == "it has no lock, and changed 0.0 days ago (limit: 7 days)"
    assert names(victim) == ["inner", LOCK]


def test_a_folder_of_another_host_is_left_for_that_host(temporary: Path) -> None:
    dead = of_a_killed_process("observatory-node-")
    (dead / LOCK).write_text("another-host")
    assert left(temporary) == {dead.name: "a process on another-host made it; clean it there"}


def test_whatever_else_bears_such_a_name_is_left(temporary: Path) -> None:
    (temporary / "pymp-file").touch()
    os.mkfifo(temporary / "observatory-node-pipe")
    (odd := temporary / "observatory-node-odd").mkdir()
    os.mkfifo(odd / LOCK)  # To open it might wait for ever.
    reasons = left(temporary)
    assert reasons["pymp-file"] == reasons["observatory-node-pipe"] == "it is not a folder"
    assert names(temporary) == ["observatory-node-odd", "observatory-node-pipe", "pymp-file"]


# Agents and runners that are killed.


@contextmanager
def _agent(temporary: Path) -> Iterator[tuple[subprocess.Popen[bytes], SignedWire]]:
    """Yield an agent with a folder of its own that has loaded torch, and its wire; at the end it is killed."""
    key, key_file = new_key(), temporary / "key"
    write_key(key_file, key)
    with closing(AgentListener("127.0.0.1", key)) as listener:
        words = ["--connect", f"127.0.0.1:{listener.port}", "--key-file", str(key_file), "--send-files"]
        agent = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench.engines.node.agent", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wire = None
        try:
            wire = listener.accept(WITHIN_S)
            assert wire is not None
            key_file.unlink()
            wait_until(lambda: any(temporary.glob("pymp-*/listener-*")))
            yield agent, wire
        finally:
            family = psutil.Process(agent.pid).children(recursive=True) if agent.poll() is None else []
            agent.kill()
            agent.wait()
            psutil.wait_procs(family, timeout=WITHIN_S)
            if wire is not None:
                wire.stream.close()


@pytest.mark.slow
def test_what_a_killed_agent_leaves_is_removed_by_the_next_one_of_the_node(temporary: Path) -> None:
    with _agent(temporary):
        pass
    before = names(temporary)
    assert [name.rpartition("-")[0] for name in before] == ["observatory-node", "pymp"]
    with _agent(temporary) as (agent, wire):
        wait_until(lambda: not set(before) & set(names(temporary)))
        alive = names(temporary)
        assert [name.rpartition("-")[0] for name in alive] == ["observatory-node", "pymp"]
        reasons = left(temporary)
        assert all(f"process {agent.pid} (" in str(reasons[name]) for name in alive), reasons
        wire.stream.close()
        agent.wait(WITHIN_S)
    assert names(temporary) == []


@pytest.mark.slow
def test_a_killed_runner_of_two_nodes_leaves_nothing_that_the_doctor_does_not_clean(
    temporary: Path, tmp_path: Path
) -> None:
    environment = {**os.environ, "TMPDIR": str(temporary), "XDG_DATA_HOME": str(tmp_path)}
    words = ["run", "ddp", "--nodes=2", "--ranks=2", "--device=cpu", "--shape=tiny", "--port=0", "--steps=1000000"]
    runner = subprocess.Popen(
        [sys.executable, "-P", "-m", "bench", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    try:
        wait_until(lambda: len(list(temporary.glob("pymp-*/listener-*"))) == 2)
        family = psutil.Process(runner.pid).children(recursive=True)
        assert any(temporary.glob("observatory-key-*/key"))
    finally:
        runner.kill()
        runner.wait()
    psutil.wait_procs(family, timeout=WITHIN_S)
    assert {name.rpartition("-")[0] for name in names(temporary)} >= {"observatory-key", "observatory-nodes"}
    cleaned = _doctor(environment, "--clean", "--format", "json")
    folders = json.loads(cleaned.stdout)["folders"]
    assert {(folder["action"], folder["content"]) for folder in folders} >= {
        ("removed", "a runner's key"),
        ("removed", "simulated nodes"),
    }
    assert names(temporary) == []
    assert _doctor(environment, "--clean").stdout.strip() == f"{temporary}: 0 folders removed, 0 left"


def _doctor(environment: dict[str, str], *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "bench", "doctor", *words]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == code, ended.stderr
    return ended


def test_a_dry_clean_removes_nothing(temporary: Path) -> None:
    dead = of_a_killed_process("observatory-node-")
    environment = {**os.environ, "TMPDIR": str(temporary)}
    assert "1 folder would be removed, 0 left" in _doctor(environment, "--clean", "--dry-run").stdout
    assert (dead / "some/more/file").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--dry-run",), "--dry-run shows what --clean would remove; add --clean"),
        (("--clean", "--nodes", "2"), "--clean cleans this machine; leave the engine, its nodes and --record out"),
    ],
)
def test_clean_belongs_to_this_machine(words: tuple[str, ...], said: str) -> None:
    assert said in _doctor(dict(os.environ), *words, code=2).stderr


# A folder for temporary files that cannot be used.


def test_a_full_disk_of_temporary_files_is_one_line(temporary: Path, tmp_path: Path) -> None:
    full = tmp_path / "full"
    filled = 'head -c 1M /dev/zero >"$0/filler" 2>/dev/null; exec "$@"'
    program = [sys.executable, "-P", "-m", "bench", "run", "single", "--device=cpu", "--shape=tiny", "--port=0"]
    ended = subprocess.run(
        on_a_small_disk(full, "sh", "-c", filled, str(full), *program),
        env={**os.environ, "TMPDIR": str(full), "XDG_DATA_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 4, ended.stderr
    assert (
        f"the disk of {full}, the folder for temporary files, is full; make room there, or set TMPDIR to another"
        in ended.stderr.splitlines()[-1]
    )


def test_a_folder_that_does_not_exist_is_replaced_by_another_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", "/nowhere/at/all")
    notice = check_tmpdir()
    assert notice is not None
    assert notice.startswith("TMPDIR is /nowhere/at/all, which cannot be used (No such file or directory); ")
    assert notice.endswith(f"temporary files are in {tmp_path}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert check_tmpdir() is None
