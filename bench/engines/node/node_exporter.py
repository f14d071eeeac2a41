"""The exporter of a node: its agent starts `observatory serve` as a child if none runs yet, and ends it.

Run as a module, the exporter serves until its standard input ends, so that it does not outlive a killed agent.
"""

from __future__ import annotations

import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

from bench.errors import say
from collectors.sockets import holder_of, is_held_by_us

ASK_S = 2.0
"""How long the port may take to answer."""
END_S = 3.0
"""How long the exporter may take to end before it is killed."""
_EXPECTED = ("serving ", "anybody who reaches ")
"""Beginnings of exporter lines that say nothing new."""
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""The address at which to probe an exporter that listens on all addresses."""


class NodeExporter:
    """Serves the node's /metrics at host and port until it is closed, unless something already serves there.

    runs: the folder of runs, which nodes may share; of its active runs it shows this node's ranks.
    targets: folder of Prometheus's targets (file_sd), in which it has a file while it serves.
    tell: called with the reason if none is started, and with the exporter's reports from another thread.
    """

    def __init__(
        self, host: str, port: int, runs: Path, targets: Path | None = None, *, tell: Callable[[str], None] = say
    ) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if _is_served(host, port):
            tell(f"no exporter is started: {_holder(host, port)} already uses port {port} of {host}")
            return
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", __name__, "--host", host, "--port", str(port), "--runs", str(runs)),
                *("--ranks", "node"),
                *(() if targets is None else ("--targets", str(targets))),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        threading.Thread(target=_pass_on, args=(self._process.stderr, tell), daemon=True).start()

    def close(self) -> None:
        """End the exporter that was started here; a second call does nothing."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _is_served(host: str, port: int) -> bool:
    try:
        socket.create_connection((_ANY.get(host, host), port), timeout=ASK_S).close()
    except OSError:
        return False
    return True


def _holder(host: str, port: int) -> str:
    """Return the program that serves there; another user's may be the site's exporter, or an impostor."""
    holder = holder_of(host, port)
    return holder if is_held_by_us(host, port) else f"{holder} (choose another port unless you trust it)"


def _pass_on(output: IO[bytes], tell: Callable[[str], None]) -> None:
    """Pass on an exporter's lines, except those about its address and its readers, which follow from the settings."""
    for line in output:
        text = line.decode(errors="replace").strip()
        if text and not text.startswith(_EXPECTED):
            tell(f"its exporter reports: {text}")


def _end_with_input() -> None:
    """End this process like Ctrl-C when standard input ends."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_input, daemon=True).start()
    sys.argv[1:1] = ["serve"]
    runpy.run_module("bench", run_name="__main__", alter_sys=True)
