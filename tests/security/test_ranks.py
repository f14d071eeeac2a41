"""Another user of the node finds no store in which ranks meet, and what is sent to their ports ends no run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # Public, but in no __all__.

from tests.security.users import User

pytestmark = pytest.mark.slow

WITHIN_S = 120.0
SMALL = ("--device", "cpu", "--ranks", "2", "--shape", "tiny", "--trials", "1", "--trace-steps", "0", "--port", "0")

LOOK_FOR_STORES = """
import socket, struct, sys
lines = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}").readlines()[1:]]
for port in {int(line[1].split(":")[1], 16) for line in lines if line[7] == sys.argv[1] and line[3] == "0A"}:
    try:
        # VALIDATE with its magic number, then GETNUMKEYS (torch's TCPStoreBackend.hpp).
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(struct.pack("=BIB", 0, 0x3C85F7CE, 7))
            keys = connection.recv(8)
    except OSError:  # It may have ended since it was listed.
        continue
    if len(keys) == 8:
        print(port, *struct.unpack("=q", keys))
"""
"""Prints each port of a user where a store of torch answers, and how many keys it has."""

SEND_GARBAGE = """
import socket, struct, sys, time
uid, reached = sys.argv[1], set()
# A key of torch's store that claims 320 MiB, and what nobody can read.
texts = [bytes([3]) + struct.pack("<Q", 320 << 20) + b"x" * 65536, b"\\xff" * 65536, b"GET / HTTP/1.0\\r\\n\\r\\n"]
opened = []
while sys.stdin.readable():
    lines = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}").readlines()[1:]]
    for port in {int(line[1].split(":")[1], 16) for line in lines if line[7] == uid and line[3] == "0A"} - reached:
        for text in texts:
            try:
                connection = socket.create_connection(("127.0.0.1", port), timeout=1)
                opened.append(connection)
                connection.sendall(text)
            except OSError:
                continue
        reached.add(port)
        print(port, flush=True)
    time.sleep(0.005)
"""
"""Sends garbage to each port at which a user listens, prints it, and keeps the connections open; never ends."""


@contextmanager
def running(user: User, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A run of the user's, which is ended with the test."""
    process = user.start(
        [sys.executable, "-P", "-m", "bench", "run", *words, *SMALL],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_step(runs: Path, step: int) -> None:
    """Wait until rank 0 of the only run has logged this step."""
    until_s = time.monotonic() + WITHIN_S
    while time.monotonic() < until_s:
        for path in runs.glob("*/rank0.jsonl"):
            records = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
            if any(record.get("step", -1) >= step for record in records if record.get("type") == "reading"):
                return
        time.sleep(0.05)
    raise AssertionError(f"no run in {runs} has come to step {step}")


def test_a_store_is_found_where_there_is_one(attacker: User) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set("a key", "a value")
    answer = attacker.python(LOOK_FOR_STORES, str(os.geteuid()))
    assert f"\n{store.port} " in f"\n{answer.stdout}", answer


@pytest.mark.parametrize("nodes", [1, 2])
def test_no_store_answers_another_user_while_ranks_train(nodes: int, victim: User, attacker: User) -> None:
    """On one node there is none; over several it is closed when the ranks have made their groups."""
    runs = victim.home / f"runs{nodes}"
    words = ("ddp", "--nodes", str(nodes), "--runs", str(runs), "--inject", "hang@0:3", "--limit", "3600")
    with running(victim, *words) as process:
        wait_for_step(runs, 2)
        answer = attacker.python(LOOK_FOR_STORES, str(victim.uid))
        assert (answer.returncode, answer.stdout) == (0, ""), answer.stderr
        assert process.poll() is None, "the ranks still hang"


def test_garbage_sent_to_all_ports_of_a_run_does_not_end_it(victim: User, attacker: User) -> None:
    pushing = attacker.start(
        [sys.executable, "-c", SEND_GARBAGE, str(victim.uid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with pushing:
        with running(victim, "one_f_one_b", "--steps", "8", "--runs", str(victim.home / "garbage")) as process:
            output, _ = process.communicate(timeout=2 * WITHIN_S)
        pushing.kill()
        ports, _ = pushing.communicate()
    assert process.returncode == 0, output
    assert len(ports.splitlines()) >= 2, "each rank listens at one port at least"
