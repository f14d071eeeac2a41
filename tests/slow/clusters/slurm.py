"""A Slurm of several nodes on this machine, from Debian's slurm-wlm and munge: its daemons are gone when it ends."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.netbox import NAMED, NetBox
from tests.support.servers import program

CPUS = 8
MEMORY_MB = 4000
"""Of each node, by its configuration: Slurm believes it."""
GPUS = {2: 4, 3: 2, 4: 3}
"""Of some nodes, by their numbers. They are nowhere but in the configuration."""
SPLIT = {4: "1g.10gb"}
"""Nodes whose GPUs are MIG instances of this profile, each of several device files."""
WITHIN_S = 60.0

_CONF = """
ClusterName=observatory
SlurmUser=root
SlurmdUser=root
SlurmctldHost={host}({address})
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
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
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
PartitionName=night Nodes=ALL Default=YES State=UP MaxTime=60 PriorityTier=1
PartitionName=urgent Nodes=ALL State=UP MaxTime=60 PriorityTier=2 PreemptMode=OFF
{more}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm:
    """A running Slurm. environment: with which its commands find it. nodes: their names."""

    folder: Path
    environment: dict[str, str]
    nodes: tuple[str, ...]
    daemons: dict[str, subprocess.Popen[bytes]]

    def call(self, *words: str) -> str:
        """Run one of its commands; return what it prints."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    def lose(self, node: str) -> None:
        """End all that runs on a node at once, and tell Slurm, which would see it after minutes."""
        self.daemons[node].kill()
        self.daemons[node].wait()
        found = [process for process in psutil.process_iter() if _variable(process, "SLURMD_NODENAME") == node]
        found = [one for one in found if _variable(one, "SLURM_CONF") == self.environment["SLURM_CONF"]]
        for process in [one.parent() for one in found] + found:
            if process is not None and (process in found or process.name() == "slurmstepd"):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self.call("scontrol", "update", f"nodename={node}", "state=down", "reason=the power is gone")

    def bring_back(self, node: str) -> None:
        """Start a node again that was lost."""
        with (self.folder / f"{node}.again").open("wb") as output:
            self.daemons[node] = subprocess.Popen(
                ["slurmd", "-D", "-N", node],
                env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        # Refused where the daemon has said so first: ReturnToService takes a node back that comes by itself.
        words = ["scontrol", "update", f"nodename={node}", "state=resume"]
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 or "Invalid node state" in done.stderr, done.stderr
        _wait(lambda: _idle(self.environment) == len(self.nodes), self.folder, f"{node} does not come back")

    def idle(self) -> int:
        """How many nodes have nothing to do."""
        return _idle(self.environment)

    def jobs(self) -> list[str]:
        """The ids of jobs that wait or run."""
        return self.call("squeue", "--noheader", "--format=%A").split()


@contextmanager
def run_slurm(nodes: int, box: NetBox | None = None) -> Iterator[Slurm]:
    """A Slurm with so many nodes, all of which are this machine, on free ports.

    box: has a node for each, and one before them for Slurm's controller, in which this thread is.
    """
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
        addresses = ["127.0.0.1"] * (nodes + 1) if box is None else [node.address for node in box.nodes]
        places = [
            [] if box is None else ["nsenter", f"--net={NAMED / box.nodes[node + 1].namespace}"]
            for node in range(nodes)
        ]
        lines = (
            f"NodeName={name} NodeHostname={host} NodeAddr={addresses[number + 1]} Port={port} CPUs={CPUS}"
            f" RealMemory={MEMORY_MB}"
            + (f" Gres=gpu:{SPLIT.get(number, 'a100')}:{GPUS[number]}" if number in GPUS else "")
            for number, (name, port) in enumerate(zip(names, ports[1:], strict=True))
        )
        with_gpus = [number for number in GPUS if number < nodes]
        more = f"PartitionName=gpu Nodes={','.join(names[number] for number in with_gpus)} State=UP MaxTime=60"
        conf.write_text(
            _CONF.format(
                host=host,
                address=addresses[0],
                folder=folder,
                ports=ports,
                nodes="\n".join(lines),
                more=more if with_gpus else "",
            )
        )
        for number in with_gpus:  # Slurm binds steps to character devices only: these are /dev/null by other names.
            for gpu in range(GPUS[number]):
                try:
                    os.mknod(folder / f"{names[number]}-cap{gpu}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
                    os.mknod(folder / f"{names[number]}-gpu{gpu}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
                except PermissionError:
                    pytest.skip("Slurm's GPUs need device files, which CAP_MKNOD may make")
        gres = [
            f"NodeName={names[number]} Name=gpu Type=a100 File={folder}/{names[number]}-gpu[0-{GPUS[number] - 1}]\n"
            for number in with_gpus
            if number not in SPLIT
        ]
        gres += [
            f"NodeName={names[number]} Name=gpu Type={SPLIT[number]}"
            f" MultipleFiles={folder}/{names[number]}-gpu{gpu},{folder}/{names[number]}-cap{gpu}\n"
            for number in with_gpus
            if number in SPLIT
            for gpu in range(GPUS[number])
        ]
        (folder / "gres.conf").write_text("".join(gres))
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
        daemons = {
            name: _start(stack, folder, environment, name, [*place, programs["slurmd"], "-D", "-N", name])
            for name, place in zip(names, places, strict=True)
        }
        stack.callback(lambda: [daemon.wait() for daemon in daemons.values()])
        stack.callback(_end_all, folder)
        slurm = Slurm(folder=folder, environment=environment, nodes=names, daemons=daemons)
        _wait(lambda: _idle(environment) == nodes, folder, "Slurm's nodes do not become idle")
        yield slurm


def _start(
    stack: ExitStack, folder: Path, environment: dict[str, str], name: str, words: Sequence[str]
) -> subprocess.Popen[bytes]:
    """Start a daemon, which is waited for when the stack is closed; what it started itself is ended before."""
    with (folder / f"{name}.out").open("wb") as output:
        daemon = subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    stack.callback(daemon.wait)
    stack.callback(daemon.kill)
    return daemon


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
        if process.name() == "slurmstepd":  # It has neither, but writes the log of its slurmd.
            return any(str(folder) in opened.path for opened in process.open_files())
        is_there = process.environ().get("SLURM_CONF") == str(folder / "slurm.conf")
        return is_there or str(folder) in " ".join(process.cmdline())
    except psutil.Error:
        return False


def _variable(process: psutil.Process, name: str) -> str | None:
    try:
        return process.environ().get(name)
    except psutil.Error:
        return None


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]
