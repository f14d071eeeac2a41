"""A source tree on its way to the nodes: the runner sends it to each node before the tree's own agent starts."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.engines.wire.frames import PROTOCOL, SignedWire
from bench.engines.wire.tcp import AgentListener

PIECE_BYTES = 1 << 19
WAIT_S = 0.5


class TreeSent(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame: an archive of this many bytes follows, in pieces."""

    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTree:
    """A source tree from which agents and ranks run instead of this program's.

    folder: its folder on this machine. archive: the tree as a tar archive, for nodes; None if it only runs here.
    protocol: the protocol of its agent. commit: None if unknown.
    """

    folder: Path
    protocol: int = PROTOCOL
    archive: bytes | None = None
    commit: str | None = None


class TreeServer:
    """Sends an archive to each agent that connects with the key, until it is closed.

    host: the address to listen at. nodes: how many agents will connect.
    """

    def __init__(self, host: str, key: bytes, archive: bytes, nodes: int) -> None:
        """Listen at a free port.

        Raises:
            InfrastructureFailed: this machine does not have the address.
        """
        self._archive = archive
        self._listener = AgentListener(host, key, expected=nodes)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="sending the source tree", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port at which agents connect."""
        return self._listener.port

    def close(self) -> None:
        """Stop sending."""
        self._is_closed.set()
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while not self._is_closed.is_set():
            if (wire := self._listener.accept(WAIT_S)) is not None:
                threading.Thread(target=self._send, args=(wire,), name="sending a tree", daemon=True).start()

    def _send(self, wire: SignedWire) -> None:
        try:
            wire.send(msgspec.json.encode(TreeSent(size=len(self._archive))))
            for start in range(0, len(self._archive), PIECE_BYTES):
                wire.send(self._archive[start : start + PIECE_BYTES])
            wire.stream.hang_up()
        except (OSError, ValueError):  # The agent is gone, which its engine reports.
            pass
        finally:
            wire.stream.close()
