"""A Slurm of several nodes on this machine, from Debian's slurm-wlm and munge: its daemons are gone when it ends."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.servers import program

CPUS = 8
"""Of each node, by its configuration: Slurm believes it."""
WITHIN_S = 60.0

_CONF = """
ClusterName=observatory
SlurmUser=root
SlurmdUser=root
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=3
InactiveLimit=0
SchedulerParameters=sched_interval=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
{nodes}
PartitionName=night Nodes=ALL Default=YES State=UP MaxTime=60
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm:
    """A running Slurm. environment: with which its commands find it. nodes: their names."""

    folder: Path
    environment: dict[str, str]
    nodes: tuple[str, ...]

    def call(self, *words: str) -> str:
        """Run one of its commands; return what it prints."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    def jobs(self) -> list[str]:
        """The ids of jobs that wait or run."""
        return self.call("squeue", "--noheader", "--format=%A").split()


@contextmanager
def run_slurm(nodes: int) -> Iterator[Slurm]:
    """A Slurm with so many nodes, all of which are this machine, on free ports."""
    programs = {name: program(name, "slurm-wlm") for name in ("slurmctld", "slurmd", "srun", "sinfo")}
    munged, mungekey = program("munged", "munge"), program("mungekey", "munge")
    if os.geteuid():
        pytest.skip("Slurm's daemons on one machine need root")
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="observatory-slurm-", ignore_cleanup_errors=True))
        )
        folder.chmod(0o755)  # munged looks at who may write above its socket.
        names = tuple(f"node{number}" for number in range(nodes))
        ports = _free_ports(nodes + 1)
        host = socket.gethostname().partition(".")[0]
        conf = folder / "slurm.conf"
        lines = (
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} RealMemory=1000"
            for name, port in zip(names, ports[1:], strict=True)
        )
        conf.write_text(_CONF.format(host=host, folder=folder, ports=ports, nodes="\n".join(lines)))
        (folder / "state").mkdir()
        environment = {**os.environ, "SLURM_CONF": str(conf)}
        subprocess.run([mungekey, "--create", "--force", "--keyfile", f"{folder}/munge.key"], check=True, timeout=60)
        _start(
            stack,
            folder, environment, "munged",
            [munged, "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={folder}/munge.key",
             f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed"],
        )  # fmt: skip
        _wait(lambda: (folder / "munge.socket").exists(), folder, "munged does not start")
        _start(stack, folder, environment, "slurmctld", [programs["slurmctld"], "-D", "-c"])
        for name in names:
            _start(stack, folder, environment, name, [programs["slurmd"], "-D", "-N", name])
        stack.callback(_end_all, folder)
        slurm = Slurm(folder=folder, environment=environment, nodes=names)
        _wait(lambda: _idle(environment) == nodes, folder, "Slurm's nodes do not become idle")
        yield slurm


def _start(stack: ExitStack, folder: Path, environment: dict[str, str], name: str, words: Sequence[str]) -> None:
    """Start a daemon, which is waited for when the stack is closed; what it started itself is ended before."""
    with (folder / f"{name}.out").open("wb") as output:
        daemon = subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    stack.callback(daemon.wait)
    stack.callback(daemon.kill)


def _idle(environment: dict[str, str]) -> int:
    words = ["sinfo", "--noheader", "--states=idle", "--format=%D"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    return sum(map(int, done.stdout.split())) if done.returncode == 0 else 0


def _wait(is_so: Callable[[], bool], folder: Path, what: str) -> None:
    until_s = time.monotonic() + WITHIN_S
    while not is_so():
        if time.monotonic() > until_s:
            logs = {path.name: path.read_text(errors="replace")[-1500:] for path in folder.glob("*.[lo]*")}
            pytest.fail(f"{what}: {logs}")
        time.sleep(0.1)


def _end_all(folder: Path) -> None:
    """End each process that was started with this Slurm's configuration, and what it started."""
    for _ in range(50):
        left = [process for process in psutil.process_iter() if _is_of(process, folder)]
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        if not left:
            break
        psutil.wait_procs(left, timeout=1)


def _is_of(process: psutil.Process, folder: Path) -> bool:
    try:
        if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
            return False
        return process.environ().get("SLURM_CONF") == str(folder / "slurm.conf") or str(folder) in " ".join(
            process.cmdline()
        )
    except psutil.Error:
        return False


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]
