"""A Ray cluster of several nodes on this machine, by Ray's own `cluster_utils`, and a user's home beside it."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.slow.clusters.nights import Night, wait, words_of
from tests.support.servers import absent_server

CPUS = 4
"""Of each node, as Ray believes."""
GPUS = 2
"""Of each node but the head, as Ray believes."""


class RayCluster:
    """A running cluster. address: of it. folder: of its files. nodes: the nodes beside the head, by name."""

    def __init__(self, cluster: Any, folder: str) -> None:
        self._cluster, self.folder = cluster, folder
        self.address: str = cluster.address
        self.nodes: dict[str, Any] = {}

    def add(self, name: str) -> None:
        """Add a node; return when the cluster has it."""
        self.nodes[name] = self._cluster.add_node(
            num_cpus=CPUS, num_gpus=GPUS, resources={"night": 1}, node_name=name, **_least()
        )

    def kill(self, name: str) -> None:
        """Kill a node's processes."""
        self._cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def groups(self) -> list[str]:
        """The states of placement groups that are not removed."""
        table = self._cluster.global_state.placement_group_table()
        return [group["state"] for group in table.values() if group["state"] != "REMOVED"]

    def actors(self) -> list[str]:
        """The states of actors that are not dead."""
        table = self._cluster.global_state.actor_table(None, None, None)
        return [actor["State"] for actor in table.values() if actor["State"] != "DEAD"]

    @contextmanager
    def of_version(self, version: str) -> Iterator[None]:
        """The cluster says that it was started by this version of Ray."""
        import ray

        client = ray._raylet.GcsClient(address=self.address)
        key, namespace = b"CLUSTER_METADATA", b"cluster"
        kept = client.internal_kv_get(key, namespace)
        assert kept is not None
        client.internal_kv_put(key, kept.replace(ray.__version__.encode(), version.encode()), True, namespace)
        try:
            yield
        finally:
            client.internal_kv_put(key, kept, True, namespace)


class RayNight(Night):
    """A night on a Ray cluster. address: of the cluster; None to start one. settings: more than address and folders."""

    def __init__(self, folder: Path, address: str | None, suite: str, settings: str = "") -> None:
        cluster = "" if address is None else f'address = "{address}"\n'
        nodes = f'environment = {{ TMPDIR = "{folder}/nodes", OF_NIGHT = "{folder}" }}\n'
        super().__init__(folder, "ray", suite, cluster + nodes + settings)
        (folder / "temporary").mkdir()
        self.environment |= {"TMPDIR": str(folder / "temporary"), "HOME": str(self.nodes)}
        self.environment.pop("RAY_ADDRESS", None)

    def drivers(self) -> list[psutil.Process]:
        """Its Ray drivers."""
        return [one for one in self.processes() if "bench.engines.ray.driver" in words_of(one)]

    def assert_nothing_is_left(self, *, kept: int = 0) -> None:
        """No process of it, and no file on the nodes but folders of so many agents that could not send them.

        Where one agent of several has died, each may be ended before the runner has taken its last lines.
        """
        wait(lambda: not self.processes(), lambda: str(self.processes()))
        of_users = (".cache", "torchinductor")  # Compiled code, which later runs use again.
        left = [path.name for path in self.nodes.iterdir() if not path.name.startswith(of_users)]
        assert self.kept() <= kept, left
        assert kept or not left, left


@contextmanager
def run_ray(nodes: int) -> Iterator[RayCluster]:
    """A cluster with so many nodes, all of which are this machine: "head", "node1" and so on."""
    if importlib.util.find_spec("ray") is None:
        absent_server("ray is not installed (pip install 'parallel-observatory[ray]')")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True))
        stack.callback(end_all, folder)
        Path(tempfile.gettempdir(), "ray").mkdir(exist_ok=True)  # Where `Cluster` notes its address, for "auto".
        cluster = Cluster(
            initialize_head=True,
            head_node_args={"temp_dir": folder, "num_cpus": CPUS, "node_name": "head", **_least()},
        )
        stack.callback(cluster.shutdown)
        running = RayCluster(cluster, folder)
        for number in range(1, nodes):
            running.add(f"node{number}")
        yield running


def _least() -> dict[str, Any]:
    return {"include_dashboard": False, "object_store_memory": 80 * 1024**2}


def processes_of(folder: str) -> list[psutil.Process]:
    """Ray's processes that have this folder on their command line."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and folder in " ".join(process.cmdline()):
                found.append(process)
    return found


def end_all(folder: str) -> None:
    """End what is left of a cluster."""
    for _ in range(50):
        left = processes_of(folder)
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        if not left:
            break
        psutil.wait_procs(left, timeout=1)
