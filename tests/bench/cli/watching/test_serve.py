"""`observatory serve` ends in order, and refuses at the door what it cannot do."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import bcrypt
import pytest
from click.testing import CliRunner

from bench.cli.watching.serve import command
from bench.errors import Misuse
from collectors.metrics.agent import AGENT_BEAT_SECONDS


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


@contextmanager
def _serve(home: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    code = (
        "import sys; from bench.cli.main import run; code = run(sys.argv[1:]);"
        " print('torch' in sys.modules, file=sys.stderr); sys.exit(code)"
    )
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code, "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_DATA_HOME": str(home)},
    ) as served:
        try:
            yield served
        finally:
            served.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_says_where_it_is_ends_in_order_and_needs_no_torch(number: signal.Signals, tmp_path: Path) -> None:
    with _serve(tmp_path, "--port", "0") as served:
        assert served.stderr is not None
        word, address = served.stderr.readline().split()
        assert word == "serving"
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert f"\n{AGENT_BEAT_SECONDS.name} 1" in answer.read().decode()
        served.send_signal(number)
        said, errors = served.communicate(timeout=60)
    assert served.returncode == 0
    assert said == ""
    assert errors.splitlines()[-1] == "False"
    assert "Traceback" not in errors


def test_serve_ends_by_a_signal_that_another_thread_of_its_was_given(tmp_path: Path) -> None:
    with _serve(tmp_path, "--port", "0") as served:
        assert served.stderr is not None
        served.stderr.readline()
        time.sleep(0.5)  # Until its first thread waits for nothing but a signal.
        thread = max(int(task.name) for task in Path(f"/proc/{served.pid}/task").iterdir())
        assert thread != served.pid
        assert ctypes.CDLL(None).tgkill(served.pid, thread, signal.SIGTERM) == 0
        served.communicate(timeout=30)
    assert served.returncode == 0


def test_serve_refuses_a_taken_port_in_one_line_with_code_4(tmp_path: Path, taken: int) -> None:
    with _serve(tmp_path, "--port", str(taken)) as served:
        _, errors = served.communicate(timeout=60)
    line, torch = errors.splitlines()
    assert served.returncode == 4
    assert line.startswith(f"observatory: port {taken} of 127.0.0.1 is taken")
    assert torch == "False"


@pytest.mark.parametrize("beat", ["0.05", "nan", "-1", "61", "inf"])
def test_serve_refuses_a_beat_out_of_bounds_with_the_bounds(beat: str) -> None:
    refused = CliRunner().invoke(command, ["--beat", beat])
    assert refused.exit_code == 2
    assert f"{float(beat):g} s is not a beat; it may be 0.1 to 60 seconds" in refused.output


@pytest.mark.parametrize("words", [["--runs", "mine"], ["--store", "sqlite:///x"], ["--job-mapping", "jobs"]])
def test_a_demonstration_of_ones_own_is_refused(words: list[str]) -> None:
    refused = CliRunner().invoke(command, ["--demo", *words])
    assert isinstance(refused.exception, Misuse)
    assert str(refused.exception) == f"--demo shows nothing of yours; leave out {words[0]}, or --demo"


def test_a_folder_of_jobs_that_is_not_there_is_refused(tmp_path: Path) -> None:
    refused = CliRunner().invoke(command, ["--job-mapping", str(tmp_path / "gone"), "--port", "0"])
    assert isinstance(refused.exception, Misuse)
    assert "gone" in str(refused.exception)


def test_a_target_with_an_address_that_only_this_node_reaches_is_refused(tmp_path: Path) -> None:
    refused = CliRunner().invoke(command, ["--targets", str(tmp_path / "targets")])
    assert isinstance(refused.exception, Misuse)
    assert "add --host 0.0.0.0, or say --host 127.0.0.1 if Prometheus runs here" in str(refused.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["there.json", "new.json"])
def test_a_file_in_place_of_a_folder_of_targets_is_refused_before_it_serves(name: str, tmp_path: Path) -> None:
    (tmp_path / "there.json").write_text("[]")
    refused = CliRunner().invoke(command, ["--targets", str(tmp_path / name), "--host", "127.0.0.1", "--port", "0"])
    assert refused.exit_code != 0
    assert "serving" not in refused.output
    assert list(tmp_path.iterdir()) == [tmp_path / "there.json"]


def test_a_web_configuration_that_is_not_there_is_refused_with_its_option(tmp_path: Path) -> None:
    refused = CliRunner().invoke(command, ["--web-config", str(tmp_path / "web.yml"), "--port", "0"])
    assert isinstance(refused.exception, Misuse)
    assert str(refused.exception).startswith(f"--web-config: {tmp_path / 'web.yml'}: No such file or directory")


def test_passwords_without_tls_are_said(tmp_path: Path, taken: int) -> None:
    hashed = bcrypt.hashpw(b"word", bcrypt.gensalt(4)).decode()
    (tmp_path / "web.yml").write_text(f"basic_auth_users:\n  ann: {hashed}\n")
    with _serve(tmp_path, "--web-config", str(tmp_path / "web.yml"), "--port", str(taken)) as served:
        _, errors = served.communicate(timeout=60)
    said = f"{tmp_path / 'web.yml'}: passwords cross the network in plain text; add a tls_server_config"
    assert errors.splitlines()[0].endswith(said)


@pytest.mark.parametrize(("host", "is_open"), [("0.0.0.0", True), ("127.0.0.1", False), ("localhost", False)])
def test_who_serves_everybody_without_a_password_is_told(host: str, is_open: bool, tmp_path: Path) -> None:
    with _serve(tmp_path, "--host", host, "--port", "0") as served:
        assert served.stderr is not None
        assert served.stderr.readline().startswith("serving http://")
        said = f"anybody who reaches {host} can read /metrics; --web-config FILE has passwords and TLS\n"
        if is_open:  # Another thread says what it has found in the meantime.
            assert said in iter(served.stderr.readline, "")
        served.terminate()
        _, errors = served.communicate(timeout=60)
    assert said not in errors


def test_a_web_configuration_that_sets_nothing_is_told(tmp_path: Path, taken: int) -> None:
    (tmp_path / "web.yml").write_text("")
    with _serve(tmp_path, "--web-config", str(tmp_path / "web.yml"), "--port", str(taken)) as served:
        _, errors = served.communicate(timeout=60)
    assert errors.splitlines()[0].startswith(f"{tmp_path / 'web.yml'} sets nothing")


def test_a_store_that_is_none_is_refused_before_it_serves(tmp_path: Path) -> None:
    with _serve(tmp_path, "--store", "notaurl", "--port", "0") as served:
        _, errors = served.communicate(timeout=60)
    assert served.returncode == 2
    assert (
        "'--store' (env var: 'OBSERVATORY_STORE'): the store's URL cannot be read; use for example sqlite:///" in errors
    )


@pytest.mark.parametrize("host", ["a..b", "x" * 70])
def test_a_host_that_is_no_name_is_refused_in_one_line(host: str, tmp_path: Path) -> None:
    with _serve(tmp_path, "--host", host, "--port", "0") as served:
        _, errors = served.communicate(timeout=60)
    assert served.returncode == 4
    assert f"observatory: host '{host}' is neither a host name nor an address" in errors
