"""The engine inside the pods of a JobSet: the runner is in the first pod, and the other pods' agents connect to it.

The cluster starts the pods by the manifest that `observatory suite render` writes; each runs
`bench.engines.kubernetes.pod`. Nothing here talks to Kubernetes: the pods have no service account.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType

from bench.engines.agent_link import StartLimit
from bench.engines.cluster import ClusterEngine, Entrance, Meeting, NodeRequest
from bench.engines.kubernetes.settings import PodSettings
from bench.engines.local import LocalNodes
from bench.engines.settings_file import read_settings
from bench.engines.wire.frames import Refused, read_key
from bench.engines.wire.tcp import listen
from bench.engines.wire.trees import RankTree
from bench.errors import InfrastructureFailed, Misuse

INDEX = "JOB_COMPLETION_INDEX"
"""Variable that Kubernetes sets in each pod of an Indexed Job: the pod's number, from 0."""
COMING_S = 1800.0
"""How long the other pods of a JobSet may take to connect: each may have to pull the image."""


class PodAllocation:
    """The pods of a JobSet, as the runner in the first pod sees them. Agents that connect between engines wait."""

    def __init__(self, request: NodeRequest) -> None:
        index = os.environ.get(INDEX)
        if index is None:
            raise Misuse(
                "--engine kubernetes works only inside the pods of a JobSet; `observatory suite render SUITE --engine"
                " kubernetes --nodes N --engine-file FILE` writes a JobSet for kubectl (docs/clusters/kubernetes.md)"
            )
        if index != "0":
            raise Misuse(f"this pod has index {index}, but a suite runs only in the pod with index 0")
        self._settings = read_settings(request.file, PodSettings)
        try:
            self._key = read_key(Path(self._settings.key_file))
        except OSError as error:
            raise Misuse(
                f"the key file {self._settings.key_file}: {error.strerror}; mount the Secret of the suite's key, as"
                " `observatory suite render` writes it"
            ) from None
        except Refused as error:
            raise Misuse(str(error)) from None
        self._request = request
        self._socket: socket.socket | None = None
        self._first_s: float | None = COMING_S
        self._start_limit = StartLimit()

    def __enter__(self) -> PodAllocation:
        self._socket = listen(self._settings.address, self._settings.port, expected=self._request.nodes)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._socket is not None:
            self._socket.close()  # This tells the agents that the suite has ended.

    def open(self, runs: Path, dropped: Collection[str] = ()) -> ClusterEngine:
        if self._socket is None:
            raise InfrastructureFailed("the port for agents is closed")
        entrance = Entrance(key=self._key, listening=self._socket, within_s=self._first_s)
        if self._first_s is not None and self._request.nodes > 1:
            self._request.tell(f"waiting for the agents of {self._request.nodes} pods")
        self._first_s = None  # The pods exist; from now on only their agents reconnect.
        placement = PodPlacement(self._settings, self._request.nodes)
        return ClusterEngine(placement, runs, entrance=entrance, dropped=dropped, start_limit=self._start_limit)

    def open_trees(
        self, runs: Path, trees: Sequence[RankTree], dropped: Collection[str] = ()
    ) -> tuple[ClusterEngine, ...]:
        """Refuse: a pod's agent is started from its image.

        Raises:
            InfrastructureFailed: always.
        """
        raise InfrastructureFailed("the engine kubernetes cannot run another source tree; use local, slurm or ray")


class PodPlacement:
    """An `AgentPlacement`: starts this pod's agent, and awaits the other pods' agents."""

    name = "kubernetes"

    def __init__(self, settings: PodSettings, nodes: int) -> None:
        self.nodes = tuple(f"{settings.pods}-{number}" for number in range(nodes))
        self.address = settings.address
        self._own_node = LocalNodes(1)

    def start(self, meeting: Meeting) -> None:
        self._own_node.start(meeting)

    def failure(self) -> str | None:
        """See `AgentPlacement`; only the JobSet learns that a pod has ended, and then ends the others."""
        return self._own_node.failure()

    def left_s(self) -> float:
        return math.inf

    def stop(self) -> None:
        self._own_node.stop()
