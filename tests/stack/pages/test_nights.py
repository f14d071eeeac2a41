"""The program of made-up nights takes its Prometheus and its files away, however it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.servers import program

pytestmark = pytest.mark.stack


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nights_that_are_ended_leave_no_server_and_no_file(tmp_path: Path, number: signal.Signals) -> None:
    program("prometheus", "prometheus")
    with subprocess.Popen(
        [sys.executable, "-m", "tests.stack.pages.nights", "1"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as nights:
        assert nights.stdout is not None
        assert nights.stdout.readline().startswith("http://127.0.0.1:")
        servers = psutil.Process(nights.pid).children(recursive=True)
        assert [server.name() for server in servers] == ["prometheus"]
        nights.send_signal(number)
        assert nights.wait(120) == 0
    assert not any(server.is_running() for server in servers)
    assert list(tmp_path.iterdir()) == []
