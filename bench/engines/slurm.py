"""The engine of a Slurm cluster: one allocation, in which a step starts an agent on each node.

Inside of an allocation (`salloc`, `sbatch`) its nodes are taken; otherwise one is asked for, and given back at the end.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType

import msgspec

from bench.engines.cluster import STOP_S, ClusterEngine, Meeting, Request
from bench.engines.settings_file import read_settings
from bench.errors import InfrastructureFailed, Misuse

CALL_S = 60.0
"""How long a command of Slurm may take that only asks."""
COMPLETING_S = 30.0
"""How long the processes of a job that has ended may take to be gone; Slurm kills them after some seconds."""
_ID = re.compile(r"job (?:allocation )?([0-9]+)")


class SlurmSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of --engine-file: what an allocation is asked for, and how agents are started in it.

    partition, account, qos, constraint, gres, time: the options of `salloc` of these names. exclusive: no other job
    shares the nodes. salloc, srun: more words for these commands, such as "--container-image=...". setup: lines of a
    shell that each node runs before its agent, such as "module load cuda". environment: of the agents and their ranks.
    address: of this machine, where the nodes reach it; by default the one from which it reaches the first of them.
    python: the interpreter that has the package on the nodes; by default this one's path.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gres: str | None = None
    time: str | None = None
    exclusive: bool = True
    salloc: tuple[str, ...] = ()
    srun: tuple[str, ...] = ()
    setup: str = ""
    environment: dict[str, str] = {}
    address: str | None = None
    python: str = sys.executable


def call(*words: str) -> str:
    """Run a command of Slurm that only asks; return what it prints.

    Raises:
        InfrastructureFailed: it is not here, does not answer, or fails.
    """
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=CALL_S, check=False)
    except FileNotFoundError:
        raise InfrastructureFailed(
            f"the engine slurm needs {words[0]}, which is not on the PATH; run this where Slurm's commands are"
        ) from None
    except subprocess.TimeoutExpired:
        raise InfrastructureFailed(f"{words[0]} has not answered within {CALL_S:g} s; is slurmctld there?") from None
    if done.returncode:
        raise InfrastructureFailed(f"{shlex.join(words)}: {_last_line(done.stderr) or f'code {done.returncode}'}")
    return done.stdout


class SlurmAllocation:
    """Nodes of a Slurm cluster. Use it in a `with`: at its end the job is cancelled, if it was asked for here."""

    def __init__(self, request: Request) -> None:
        self.settings = read_settings(request.file, SlurmSettings, "Slurm")
        self._request = request
        self.job: str | None = None
        self._is_ours = False
        self._salloc: subprocess.Popen[str] | None = None

    def __enter__(self) -> SlurmAllocation:
        present = os.environ.get("SLURM_JOB_ID")
        if present is None:
            self._allocate()
        else:
            there = int(os.environ.get("SLURM_JOB_NUM_NODES", os.environ.get("SLURM_NNODES", "1")))
            if there < self._request.nodes:
                raise Misuse(f"--nodes is {self._request.nodes}, and job {present} has {there}; take fewer")
            self.job = present
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()

    def open(self, runs: Path) -> ClusterEngine:
        """Open an engine on the job's nodes.

        Raises:
            InfrastructureFailed: the job has ended.
        """
        if (reason := self.why_ended()) is not None:
            raise InfrastructureFailed(reason)
        return ClusterEngine(SlurmPlacement(self, self.nodes()), runs)

    def nodes(self) -> tuple[str, ...]:
        """Return the names of the nodes that are used, in Slurm's order."""
        names = call("scontrol", "show", "hostnames", self.state()["NodeList"]).split()
        return tuple(names[: self._request.nodes])

    def state(self) -> dict[str, str]:
        """Return what Slurm says of the job; only its state where it has forgotten the rest, as accounting knows it.

        Raises:
            InfrastructureFailed: Slurm does not answer, or knows no such job.
        """
        assert self.job is not None, "it is entered"
        try:
            line = call("scontrol", "--oneliner", "show", "job", self.job)
        except InfrastructureFailed:
            with suppress(InfrastructureFailed):
                found = call("sacct", "--noheader", "--allocations", "--format=State", f"--jobs={self.job}").split()
                if found:
                    return {"JobState": found[0]}
            raise
        return dict(word.split("=", 1) for word in line.split() if "=" in word)

    def why_ended(self) -> str | None:
        """Return why the job is no longer there; None as long as it runs."""
        until_s = time.monotonic() + COMPLETING_S
        try:
            while (state := self.state())["JobState"] == "COMPLETING" and time.monotonic() < until_s:
                time.sleep(1.0)  # What it ended as is told when its processes are gone.
        except InfrastructureFailed as error:
            return f"job {self.job} is gone: {error}"
        if state["JobState"] in ("RUNNING", "CONFIGURING"):
            return None
        reason = state.get("Reason", "None")
        return f"job {self.job} has ended: {state['JobState']}{'' if reason == 'None' else f' ({reason})'}"

    def left_s(self) -> float:
        """Return for how many seconds the job goes on at most; infinity where it has no limit, or nobody says."""
        with suppress(InfrastructureFailed, ValueError, KeyError):
            return (datetime.fromisoformat(self.state()["EndTime"]) - datetime.now()).total_seconds()
        return math.inf

    def _allocate(self) -> None:
        """Ask for the nodes, and wait for them.

        Raises:
            InfrastructureFailed: Slurm gives none.
            Misuse: it has not so many.
        """
        if shutil.which("salloc") is None:
            raise InfrastructureFailed(
                "the engine slurm needs salloc, which is not on the PATH; run this where Slurm's commands are"
            )
        settings = self.settings
        partition, there = _partition(settings.partition)
        if there < self._request.nodes:  # Slurm itself would let the job wait for ever.
            raise Misuse(f"--nodes is {self._request.nodes}, and the partition {partition} has {there}; take fewer")
        words = ["salloc", "--no-shell", "--no-kill", f"--nodes={self._request.nodes}", "--job-name=observatory"]
        for name in ("partition", "account", "qos", "constraint", "gres", "time"):
            if (value := getattr(settings, name)) is not None:
                words.append(f"--{name}={value}")
        words += [*(["--exclusive"] if settings.exclusive else []), *settings.salloc]
        self._is_ours = True
        self._salloc = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            start_new_session=True,  # Ctrl-C goes to the runner alone, which gives the job back.
        )  # fmt: skip
        said: list[str] = []
        assert self._salloc.stderr is not None
        try:
            for line in self._salloc.stderr:
                said.append(line)
                if found := _ID.search(line):
                    self.job = found[1]
                if "queued and waiting" in line:
                    self._request.tell(f"job {self.job} waits for {self._request.nodes} node(s)")
            code = self._salloc.wait()
        except BaseException:
            self._give_back()
            raise
        if code:
            self._give_back()
            reason = next((line for line in reversed(said) if "error:" in line), "".join(said[-1:])).strip()
            raise InfrastructureFailed(f"Slurm gives no nodes: {reason}")

    def _give_back(self) -> None:
        if self._salloc is not None and self._salloc.poll() is None:
            self._salloc.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._salloc.wait(STOP_S)
        if self._is_ours and self.job is not None:
            with suppress(InfrastructureFailed):
                call("scancel", self.job)
        self._is_ours = False


class SlurmPlacement:
    """Agents as a step of a job, one on each node. The key goes to them by the step's standard input."""

    name = "slurm"

    def __init__(self, allocation: SlurmAllocation, nodes: Sequence[str]) -> None:
        self.nodes = tuple(nodes)
        self._allocation = allocation
        self.address = allocation.settings.address or _address_towards(self.nodes[0])
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # Lives as long as the step.
        self._step: subprocess.Popen[bytes] | None = None

    def start(self, meeting: Meeting) -> None:
        """See `Placement`."""
        settings, count = self._allocation.settings, len(self.nodes)
        agent = [settings.python, "-P", "-m", "bench.engines.node.agent", "--connect", f"{meeting.host}:{meeting.port}"]
        lines = ["{", ":", settings.setup, "} </dev/null"]  # Standard input has the key.
        lines.append(f'exec {shlex.join(agent)} --send-files --node "$SLURM_NODEID"')
        words = [
            *("srun", f"--jobid={self._allocation.job}", f"--nodes={count}", f"--ntasks={count}"),
            *("--ntasks-per-node=1", f"--nodelist={','.join(self.nodes)}", "--overlap", "--kill-on-bad-exit=0"),
            *("--no-kill", "--cpu-bind=none", "--job-name=agents", *settings.srun),
            *("sh", "-c", "\n".join(lines)),
        ]
        try:
            self._step = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=self._output,
                env={**_outside_of_steps(os.environ), **settings.environment},
                start_new_session=True,
            )
        except FileNotFoundError:
            raise InfrastructureFailed(
                "the engine slurm needs srun, which is not on the PATH; run this where Slurm's commands are"
            ) from None
        assert self._step.stdin is not None
        with suppress(BrokenPipeError):  # The step has failed already, which `failure` tells.
            self._step.stdin.write(meeting.key_file.read_bytes())
            self._step.stdin.close()

    def failure(self) -> str | None:
        """See `Placement`."""
        if (reason := self._allocation.why_ended()) is not None:
            return reason
        if self._step is not None and (code := self._step.poll()) is not None:
            return f"its step ended with code {code}{self._said()}"
        return None

    def left_s(self) -> float:
        """See `Placement`."""
        return self._allocation.left_s()

    def stop(self) -> None:
        """See `Placement`."""
        if self._step is not None:
            try:
                self._step.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._step.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self._step.wait(STOP_S)
                self._step.kill()
                self._step.wait()
        self._output.close()

    def _said(self) -> str:
        self._output.seek(0)
        line = _last_line(self._output.read().decode(errors="replace"))
        return f"; it said: {line}" if line else ""


def _partition(name: str | None) -> tuple[str, int]:
    """Return the name of a partition, by default Slurm's own, and how many nodes it has.

    Raises:
        InfrastructureFailed: Slurm does not answer.
        Misuse: there is no such partition.
    """
    found: dict[str, int] = {}
    for line in call("sinfo", "--noheader", "--format=%P %D").splitlines():
        words = line.split()  # The default partition ends with a star; a line for each state of its nodes.
        found[words[0]] = found.get(words[0], 0) + int(words[1])
    for partition, nodes in found.items():
        if (partition.endswith("*") and name is None) or partition.removesuffix("*") == name:
            return partition.removesuffix("*"), nodes
    known = ", ".join(partition.removesuffix("*") for partition in found)
    what = "Slurm has no default partition" if name is None else f'partition "{name}" is unknown'
    raise Misuse(f'{what}; name one in the engine\'s file: partition = "...", which may be {known}')


def _address_towards(node: str) -> str:
    """Return the address of this machine from which it reaches the node; no packet is sent."""
    try:
        where = dict(
            word.split("=", 1) for word in call("scontrol", "--oneliner", "show", "node", node).split() if "=" in word
        )
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((where.get("NodeAddr", node), 9))
            address: str = probe.getsockname()[0]
            return address
    except OSError as error:
        raise InfrastructureFailed(
            f"the address of node {node} is not found ({error.strerror}); give this machine's in the engine's file:"
            ' address = "..."'
        ) from None


def _outside_of_steps(user: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what a step or an sbatch script asks of its own steps."""
    return {
        name: value
        for name, value in user.items()
        if not name.startswith(("SLURM_STEP", "SLURM_NTASKS", "SLURM_TASKS", "SLURM_CPUS_PER", "SLURM_MEM", "SRUN_"))
    }


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
