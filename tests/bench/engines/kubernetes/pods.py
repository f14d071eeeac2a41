"""Pods of a suite as processes of this machine: each runs the very lines of the manifest, with folders of its own."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from bench.engines.kubernetes.manifests import OWN_FOLDER, RESULTS, SECRET_FOLDER, SUITE_FOLDER, SuiteJob, manifests
from bench.engines.kubernetes.settings import KubernetesSettings
from tests.bench.made.fake_suites import TINY_SHAPE

HEAD = f"""
schema_version = 1
[defaults]
device = "cpu"
trials = 1
steps = 3
warm_up = 1
trace_steps = 0
{TINY_SHAPE}
batch = 4
limit_s = 100
"""
WITHIN_S = 150.0


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


class Pods:
    """The pods of one JobSet, whose volume and Secret are folders.

    folder: empty. suite: text of a suite file. nodes: how many pods there are.
    """

    def __init__(self, folder: Path, suite: str, *, nodes: int, image: str = "an-image", python: str = "") -> None:
        settings = KubernetesSettings(
            image=image, claim="results", gpus=0, port=free_port(), python=python or sys.executable
        )
        self.job = SuiteJob(suite="tiny", file=suite, nodes=nodes, ranks_per_node=None, settings=settings)
        self.folder, self.results = folder, folder / "results"
        self.results.mkdir()
        secret, config, jobset = manifests(self.job)
        self.pod: dict[str, Any] = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        self.secret = folder / "secret"
        self.secret.mkdir()
        (self.secret / "key").write_text(secret["stringData"]["key"])
        (self.secret / "key").chmod(stat.S_IRUSR | stat.S_IRGRP)  # As kubelet leaves it with fsGroup.
        (folder / "suite").mkdir()
        for name, text in config["data"].items():
            (folder / "suite" / name).write_text(text)
        self._started = 0

    def start(self, number: int, *, job: str = "uid-1") -> subprocess.Popen[str]:
        """Start the pod of this number, anew each time."""
        self._started += 1
        own = self.folder / f"own{self._started}"
        own.mkdir()
        (shell, option, lines) = self.pod["containers"][0]["command"]
        first = f"{self.job.name}-node-0-0.{self.job.name}:"
        places = {RESULTS: self.results, SECRET_FOLDER: self.secret, SUITE_FOLDER: self.folder / "suite"}
        for there, here in ({OWN_FOLDER: own, first: "localhost:"} | places).items():
            assert str(there) in lines
            lines = lines.replace(str(there), str(here))
        return subprocess.Popen(
            [shell, option, lines],
            env={
                **os.environ,
                "JOB_COMPLETION_INDEX": str(number),
                "POD_ADDRESS": "127.0.0.1",
                "JOBSET_UID": job,
                "CUDA_VISIBLE_DEVICES": "",
                "XDG_DATA_HOME": str(own),
                "TMPDIR": str(own),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def suite_runs(self) -> list[str]:
        """The suite runs on the volume."""
        return sorted(path.name for path in (self.results / "runs" / "suites").glob("*"))


@contextmanager
def ended(*pods: subprocess.Popen[str]) -> Iterator[None]:
    """Whatever happens, no process of the pods is left."""
    try:
        yield
    finally:
        for pod in pods:
            with suppress(ProcessLookupError):
                os.killpg(pod.pid, signal.SIGKILL)
            pod.communicate()


def agents_beneath(pod: subprocess.Popen[str]) -> list[psutil.Process]:
    """The agents that a pod has now."""
    found = []
    for process in psutil.Process(pod.pid).children(recursive=True):
        with suppress(psutil.Error):
            if "bench.engines.node.agent" in process.cmdline():
                found.append(process)
    return found
