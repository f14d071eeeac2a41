"""A node's agents that run from other source trees: receives each tree from its runner, then starts the tree's agent.

Started in place of the agent, with the agent's own arguments and `--tree SHA256:PORT:PORT` for each tree: its hash,
the runner's port that sends it, and the port at which the tree's agent connects. The agents are children of this
process, which removes the folders of the trees when they have ended.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from bench.engines.node.tree_folder import digest_of, unpacked
from bench.engines.wire.frames import PipeStream, Refused, StreamEnded, key_line, meet, read_key, receive_key
from bench.engines.wire.tcp import address_of, connect
from bench.engines.wire.trees import TreeSent
from bench.errors import InfrastructureFailed, say
from collectors.files import PRIVATE

LOOK_S = 0.2
"""How often to check whether an agent has ended."""
END_S = 10.0
"""How long the other agents may take to end when one has failed."""


def main() -> int:
    """Serve as the trees' agents until they end; return the first exit code that is not 0."""
    parser = argparse.ArgumentParser(prog="agents", description="The agents of a node from other source trees.")
    parser.add_argument("--tree", action="append", required=True, metavar="SHA256:PORT:PORT", help="a tree's hash")
    parser.add_argument("--connect", type=address_of, required=True, metavar="HOST:PORT", help="address of the runner")
    parser.add_argument("--key-file", type=Path, metavar="FILE", help="file with the key")
    parser.add_argument("--node", type=int, default=0, help="this node's number among those of the runner")
    arguments, others = parser.parse_known_args()
    os.umask(PRIVATE)
    host, _ = arguments.connect
    try:
        # Unbuffered, so that nothing after the key's line is read here.
        standard = PipeStream(os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb", buffering=0))
        key = receive_key(standard) if arguments.key_file is None else read_key(arguments.key_file)
        with ExitStack() as stack:
            agents: list[tuple[list[str], Path]] = []
            for text in arguments.tree:
                digest, tree_port, port = text.split(":")
                archive = _receive(host, int(tree_port), key, arguments.node, digest)
                tree = stack.enter_context(unpacked(archive))
                address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                words = ["--connect", address, "--node", str(arguments.node), *_of_tree(others, len(agents))]
                agents.append((words, tree))
            return _serve(agents, key)
    except (Refused, StreamEnded, InfrastructureFailed, OSError) as error:
        say(f"agent: the source tree cannot be run: {error}")
        return 1


def _of_tree(words: Sequence[str], number: int) -> list[str]:
    """Return the arguments of one tree's agent: with `--runs`, each agent of a node has its own folder of runs.

    Example: of `--runs /tmp/node0 --send-files`, the second agent gets `--runs /tmp/node0-1 --send-files`.
    """
    return [
        f"{word}-{number}" if before == "--runs" else word for before, word in zip(("", *words), words, strict=False)
    ]


def _receive(host: str, port: int, key: bytes, node: int, digest: str) -> bytes:
    """Return the archive of a tree.

    Raises:
        Refused: the runner sent no tree, or another one.
        StreamEnded, OSError: the connection is lost.
    """
    stream = connect(host, port)
    try:
        wire = meet(stream, key, "agent", node=node)
        size = msgspec.json.decode(wire.receive(), type=TreeSent).size
        archive = bytearray()
        while len(archive) < size:
            archive += wire.receive()
    except msgspec.DecodeError as error:
        raise Refused(f"the runner sent none: {error}") from None
    finally:
        stream.close()
    if digest_of(bytes(archive)) != digest:
        raise Refused(f"its hash is {digest_of(bytes(archive))[:12]} and not {digest[:12]}")
    return bytes(archive)


def _serve(agents: Sequence[tuple[list[str], Path]], key: bytes) -> int:
    """Run the agents until all have ended, or one has failed; signals that end this process end the agents first."""
    children: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: object) -> None:
        for child in children:
            child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    try:
        for words, tree in agents:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "bench.engines.node.agent", *words],
                stdin=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": str(tree)},
            )
            children.append(child)
            assert child.stdin is not None
            with suppress(BrokenPipeError):  # It has ended, which its exit code shows.
                child.stdin.write(key_line(key))
                child.stdin.close()
        while any(child.poll() is None for child in children):
            if any(child.returncode for child in children):
                break
            time.sleep(LOOK_S)
        return next((child.returncode for child in children if child.returncode), 0)
    finally:
        _end(children)


def _end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    for child in children:
        if child.poll() is None:
            child.terminate()
    for child in children:
        try:
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


if __name__ == "__main__":
    sys.exit(main())
