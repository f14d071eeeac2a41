"""The engine of a Slurm cluster: a step in one allocation starts an agent on each node.

Inside an allocation (`salloc`, `sbatch`) it uses that allocation's nodes; otherwise it requests an allocation, and
releases it at the end.
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
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Annotated

import msgspec

from bench.engines.agent_link import LOADING_S, StartLimit
from bench.engines.cluster import LEAST_S, SPARE_S, STOP_S, Capacity, ClusterEngine, Meeting, NodeRequest
from bench.engines.root_cause import is_chatter
from bench.engines.settings_file import Environment, Interpreter, exporter_words, last_words, read_settings, setup_lines
from bench.engines.slurm.node_list import call, fields, job_line, last_line, read_nodes
from bench.engines.slurm.nodes import (
    GpuWords,
    capacity_of_job,
    capacity_of_partition,
    check_count,
    check_job,
    find_partitions,
    gpus_of,
    host_names,
    read_gpu_words,
    step_gpus,
    unclear_words,
)
from bench.engines.trees import engines_of_trees
from bench.engines.wire.trees import RankTree
from bench.errors import InfrastructureFailed, Misuse, plural

COMPLETING_S = 30.0
"""How long the processes of an ended job may take to disappear; Slurm kills them after some seconds."""
_ID = re.compile(r"job (?:allocation )?([0-9]+)")
StartSeconds = Annotated[float, msgspec.Meta(ge=1, le=86_400, title="a number of seconds, 1 to 86400")]


class SlurmSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of --engine-file: what to request for an allocation, and how to start agents in it.

    partition, account, qos, constraint, gres, time: the options of `salloc` of these names. exclusive: no other job
    shares the nodes.
    salloc, srun: more arguments for these commands, for example "--container-image=...".
    setup: shell lines that each node runs before its agent, for example "module load cuda". environment: variables of
    the agents and their ranks.
    address: this machine's address as the nodes reach it; by default the one from which it reaches the first node.
    python: the interpreter that has the package on the nodes; by default this one's path.
    exporter: host and port at which each node serves /metrics while its agent lives, for example "0.0.0.0:9464"; by
    default none.
    targets: folder of Prometheus's targets (file_sd), in which each node's exporter has a file while it serves; on a
    file system that the nodes share.
    start_limit_s: how long the first agents may take to start. Each step imports a container's image (pyxis), which may
    take longer than loading torch.
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
    environment: Environment = {}
    address: str | None = None
    python: Interpreter = sys.executable
    exporter: str | None = None
    targets: str | None = None
    start_limit_s: StartSeconds = LOADING_S


def read_capacity(request: NodeRequest) -> Capacity:
    """Return what the nodes have on which the request's cases would run: the job's nodes, or the partition's.

    Raises:
        InfrastructureFailed: Slurm does not answer.
        Misuse: the settings are wrong, or there are fewer nodes.
    """
    settings, nodes = read_settings(request.file, SlurmSettings), request.nodes
    if (job := os.environ.get("SLURM_JOB_ID")) is not None:
        capacity = capacity_of_job(job, nodes=nodes, asks=f"{plural(nodes, 'node')} of job {job} would be used")
    else:
        capacity = capacity_of_partition(
            requested_partitions(settings, os.environ),
            nodes=nodes,
            constraint=settings.constraint,
            gpus=requested_gpus(settings, os.environ),
            is_exclusive=settings.exclusive,
            asks=f"the request to Slurm would be `{shlex.join(_salloc(settings, nodes))}`",
        )
    step = read_gpu_words(settings.srun)  # The user's own arguments for srun decide what agents get.
    if step.of_node is not None:
        return replace(capacity, gpus=gpus_of(step.of_node))
    if step.unclear is not None:
        return replace(capacity, gpus=None, notes=(*capacity.notes, unclear_words(step.unclear)))
    return capacity


def _salloc(settings: SlurmSettings, nodes: int) -> list[str]:
    words = ["salloc", "--no-kill", f"--nodes={nodes}", "--job-name=observatory"]
    for name in ("partition", "account", "qos", "constraint", "gres", "time"):
        if (value := getattr(settings, name)) is not None:
            words.append(f"--{name}={value}")
    return [*words, *(["--exclusive"] if settings.exclusive else []), *settings.salloc]


def requested_partitions(settings: SlurmSettings, user: Mapping[str, str]) -> str | None:
    """Return the partition that salloc will use, or several separated by commas; None for Slurm's default.

    salloc uses the last one on its command line, else that of the environment.
    """
    partitions = settings.partition or user.get("SALLOC_PARTITION") or None
    words = iter(settings.salloc)
    for word in words:
        if word in ("--partition", "-p"):
            partitions = next(words, partitions)
        elif word.startswith("--partition="):
            partitions = word.removeprefix("--partition=")
        elif word.startswith("-p"):
            partitions = word.removeprefix("-p")
    return partitions


def requested_gpus(settings: SlurmSettings, user: Mapping[str, str]) -> GpuWords:
    """Return the GPUs that salloc will request: by the environment, or by the settings, which come later and win."""
    options = {"SALLOC_GRES": "--gres", "SALLOC_GPUS_PER_NODE": "--gpus-per-node", "SALLOC_GPUS": "--gpus"}
    words = [f"{option}={user[name]}" for name, option in options.items() if name in user]
    return read_gpu_words([*words, *_salloc(settings, 1)])


class SlurmAllocation:
    """Nodes of a Slurm cluster. Use it in a `with`: at its end the job is cancelled, if it was requested here."""

    def __init__(self, request: NodeRequest) -> None:
        self.settings = read_settings(request.file, SlurmSettings)
        self.exporter = exporter_words(request.file, self.settings.exporter, self.settings.targets)
        self._request = request
        self._start_limit = StartLimit(self.settings.start_limit_s)
        self.job: str | None = None
        self._salloc: subprocess.Popen[str] | None = None
        self._names: list[str] = []  # Of all nodes that the job has had.
        self._notes: set[str] = set()

    def __enter__(self) -> SlurmAllocation:
        present = os.environ.get("SLURM_JOB_ID")
        if present is None:
            self._allocate()
        else:
            node_count = os.environ.get("SLURM_JOB_NUM_NODES", os.environ.get("SLURM_NNODES", "1"))
            if not node_count.isdecimal():
                raise Misuse(
                    f'SLURM_JOB_NUM_NODES is "{node_count}", not a number; keep the value that Slurm sets in a job'
                )
            check_job(self._request.nodes, present, int(node_count))
            self.job = present
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()

    def open(self, runs: Path, dropped: Collection[str] = ()) -> ClusterEngine:
        """Open an engine on the job's nodes, without the dropped ones.

        Raises:
            InfrastructureFailed: the job has ended or is about to, or too few of its nodes are up.
        """
        placement = self._placement(dropped)
        return ClusterEngine(placement, runs, start_limit=self._start_limit)

    def open_trees(
        self, runs: Path, trees: Sequence[RankTree], dropped: Collection[str] = ()
    ) -> tuple[ClusterEngine, ...]:
        """See `Allocation`; on the nodes of the other engines."""
        return engines_of_trees(self._placement(dropped), runs, trees, start_limit=self._start_limit)

    def _placement(self, dropped: Collection[str]) -> SlurmPlacement:
        if (reason := self.why_ended()) is not None:
            raise InfrastructureFailed(reason)
        if (left_s := self.left_s()) < SPARE_S + LEAST_S:  # Each remaining case would fail.
            raise InfrastructureFailed(
                f"job {self.job} ends in {max(0.0, left_s):.0f} s, too soon for a trial; continue in another job with"
                " --resume"
            )
        return SlurmPlacement(self, self.nodes(dropped))

    def nodes(self, dropped: Collection[str] = ()) -> tuple[str, ...]:
        """Return the names of the nodes to use, in Slurm's order: the first that are up, if the job has more.

        dropped: names of nodes to leave out, so that fewer are used.

        Raises:
            InfrastructureFailed: too few of the job's nodes are up.
        """
        names = host_names(self.state()["NodeList"])
        self._names += [name for name in names if name not in self._names]  # Slurm removes lost nodes from its list.
        candidates = [name for name in self._names if name not in dropped]
        states = {node.name: node.why_gone for node in read_nodes(candidates)} if candidates else {}
        healthy = [name for name in names if name in states and states[name] is None]
        needed = self._request.nodes - len(dropped)
        if len(healthy) < needed:
            lost = "; ".join(f"{name} is {state or 'gone'}" for name, state in states.items() if name not in healthy)
            raise InfrastructureFailed(
                f"job {self.job} has {len(healthy)} of {plural(needed, 'node')} left: {lost};"
                " continue in another job with"
                " --resume"
            )
        return tuple(healthy[:needed])

    def state(self) -> dict[str, str]:
        """Return Slurm's description of the job; only the state from accounting if Slurm has forgotten the rest.

        Raises:
            InfrastructureFailed: Slurm does not answer, or knows no such job.
        """
        assert self.job is not None, "it is entered"
        try:
            text = call("scontrol", "--oneliner", "show", "job", self.job)
        except InfrastructureFailed:
            with suppress(InfrastructureFailed):
                words = ("sacct", "--noheader", "--allocations", "--format=State", f"--jobs={self.job}")
                if line := last_line(call(*words)):
                    return {"JobState": line.split()[0]}
            raise
        if "JobState" not in (job := fields(job_line(text))):
            raise InfrastructureFailed(f"scontrol describes job {self.job} without a state: {last_line(text)[:80]!r}")
        return job

    def why_ended(self) -> str | None:
        """Return why the job no longer runs; None while it runs."""
        deadline_s = time.monotonic() + COMPLETING_S
        try:
            while (state := self.state())["JobState"] == "COMPLETING" and time.monotonic() < deadline_s:
                time.sleep(1.0)  # Slurm reports the final state when the processes are gone.
        except InfrastructureFailed as error:
            return f"job {self.job} is gone: {error}"
        if state["JobState"] in ("RUNNING", "CONFIGURING"):
            return None
        reason = state.get("Reason", "None")
        return f"job {self.job} has ended: {state['JobState']}{'' if reason == 'None' else f' ({reason})'}"

    def left_s(self) -> float:
        """Return the seconds until the job's time limit; infinity if it has none, or if the limit is unknown."""
        with suppress(InfrastructureFailed, ValueError, KeyError):
            # Slurm reports local time, which a change to or from summer time shifts.
            return datetime.fromisoformat(self.state()["EndTime"]).timestamp() - time.time()
        return math.inf

    def gpu_words(self) -> list[str]:
        """Return the arguments by which srun requests a step's GPUs; none if the user's own arguments for srun do.

        Raises:
            InfrastructureFailed: Slurm does not answer.
        """
        assert self.job is not None, "it is entered"
        if any(word.startswith(_GPU_WORDS) for word in self.settings.srun):
            return []
        gpus, note = step_gpus(self.job)
        if note is not None and note not in self._notes:
            self._notes.add(note)
            self._request.tell(note)
        return [f"--gres=gpu:{gpus}"] if gpus else []

    def _allocate(self) -> None:
        """Request the nodes, and wait for them.

        Raises:
            InfrastructureFailed: Slurm does not allocate them.
            Misuse: the partition does not have this many.
        """
        if shutil.which("salloc") is None:
            raise InfrastructureFailed(
                "the engine slurm needs salloc, which is not on the PATH; run this where Slurm's commands are installed"
            )
        settings = self.settings
        check_count(self._request.nodes, *find_partitions(requested_partitions(settings, os.environ)))
        self._salloc = subprocess.Popen(
            [*_salloc(settings, self._request.nodes), "cat"],
            stdin=subprocess.PIPE,  # At its end, also after a kill, cat ends, and salloc frees the nodes.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C reaches only the runner, which cancels the job.
        )
        printed_lines: list[str] = []
        assert self._salloc.stderr is not None
        try:
            for line in self._salloc.stderr:
                printed_lines.append(line)
                if match := _ID.search(line):
                    self.job = match[1]
                if "queued and waiting" in line:
                    self._request.tell(f"job {self.job} is waiting for {plural(self._request.nodes, 'node')}")
                if "Granted job allocation" in line:
                    while self.state().get("JobState") == "CONFIGURING":  # Some sites start nodes for a job.
                        time.sleep(1.0)
                    return
            self._salloc.wait()
        except BaseException:
            self._give_back()
            raise
        self._give_back()
        reason = next(
            (line for line in reversed(printed_lines) if "error:" in line), "".join(printed_lines[-1:])
        ).strip()
        raise InfrastructureFailed(f"Slurm allocated no nodes: {reason}")

    def _give_back(self) -> None:
        if self._salloc is None:
            return
        assert self._salloc.stdin is not None
        assert self._salloc.stderr is not None
        self._salloc.stdin.close()
        if self.job is None:
            self._salloc.terminate()
        else:
            with suppress(InfrastructureFailed):
                call("scancel", self.job)
        try:
            self._salloc.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._salloc.kill()
            self._salloc.wait()
        self._salloc.stderr.close()
        self._salloc = None


class SlurmPlacement:
    """An `AgentPlacement`: agents as a step of a job, one on each node, which read the key from the step's input."""

    name = "slurm"

    def __init__(self, allocation: SlurmAllocation, nodes: Sequence[str]) -> None:
        self.nodes = tuple(nodes)
        self._allocation = allocation
        self.address = allocation.settings.address or _address_towards(self.nodes[0])
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # Lives as long as the step.
        self._step: subprocess.Popen[bytes] | None = None

    def start(self, meeting: Meeting) -> None:
        settings, count = self._allocation.settings, len(self.nodes)
        agent = [settings.python, "-P", "-m", meeting.module, *meeting.address_words]
        agent += self._allocation.exporter if not meeting.trees else []  # The port may be another agent's.
        lines = [*setup_lines(settings.setup), f'exec {shlex.join(agent)} --send-files --node "$SLURM_NODEID"']
        words = [
            *("srun", f"--jobid={self._allocation.job}", f"--nodes={count}", f"--ntasks={count}"),
            *("--ntasks-per-node=1", f"--nodelist={','.join(self.nodes)}", "--overlap", "--kill-on-bad-exit=0"),
            *("--no-kill", "--cpu-bind=none", "--export=ALL", "--job-name=agents", "--label"),
            *(*self._allocation.gpu_words(), *settings.srun),
            *("sh", "-c", "\n".join(lines)),
        ]
        # Without the variables by which a step or an sbatch script sets options of its own steps.
        own = {name: value for name, value in os.environ.items() if not name.startswith(_OF_STEPS)}
        try:
            self._step = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=self._output,
                env={**own, **settings.environment},
                start_new_session=True,
            )
        except FileNotFoundError:
            raise InfrastructureFailed(
                "the engine slurm needs srun, which is not on the PATH; run this where Slurm's commands are installed"
            ) from None
        assert self._step.stdin is not None
        with suppress(BrokenPipeError):  # The step has already failed, which `failure` reports.
            self._step.stdin.write(meeting.key_file.read_bytes())
            self._step.stdin.close()

    def failure(self) -> str | None:
        if (reason := self._allocation.why_ended()) is not None:
            return reason
        self._output.seek(0)
        printed = self._output.read().decode(errors="replace")
        output = _read_output(printed, self.nodes, self._allocation.settings.python)
        if self._step is not None and (code := self._step.poll()) is not None:
            return f"its step ended with code {code}{output.detail}"
        # An agent that has ended fails the trial, although others continue.
        return f"it ended{output.detail}" if output.has_ended else None

    def left_s(self) -> float:
        return self._allocation.left_s()

    def stop(self) -> None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepOutput:
    """The output of a step. detail: ends a message about the step. has_ended: a task failed or never began."""

    detail: str
    has_ended: bool


_LABELLED = re.compile(r" *([0-9]+): (.*)")
_TASK_ENDED = re.compile(r"Exited with exit code|Task launch for .* failed|Unable to create step|task[s]? .*: Killed")
_NO_MODULE = re.compile(r"No module named '?([\w.]+)|cannot import name")
_NO_PYTHON = re.compile(r"(?:not found|No such file or directory|Permission denied)$")


def _read_output(text: str, nodes: Sequence[str], python: str) -> _StepOutput:
    """Read the output of `srun --label`: "1: text" belongs to the second node, and the rest to srun itself."""
    of_nodes: list[tuple[str, str]] = []
    srun_lines: list[str] = []
    for line in text.splitlines():
        if (match := _LABELLED.fullmatch(line)) is None:
            srun_lines.append(line)
        elif match[2].strip() and not is_chatter(match[2]):
            of_nodes.append((nodes[int(match[1])] if int(match[1]) < len(nodes) else "a node", match[2].strip()))
    has_ended = any(_TASK_ENDED.search(line) for line in srun_lines)
    for node, line in of_nodes:
        if (missing := _NO_MODULE.search(line)) is not None:
            what = f"has no module {missing[1]}" if missing[1] else f"has another parallel-observatory ({line})"
            return _StepOutput(
                detail=f": {python} on {node} {what}; install the same package there, or set an interpreter that has it"
                ' in the engine\'s file: python = "..."',
                has_ended=has_ended,
            )
        if python in line and _NO_PYTHON.search(line):
            return _StepOutput(
                detail=f": {node} cannot run {python}; set an interpreter that has the package in the engine's file:"
                ' python = "..."',
                has_ended=has_ended,
            )
    if of_nodes:
        node, _ = of_nodes[-1]
        words = last_words([line for line_node, line in of_nodes if line_node == node])
        return _StepOutput(detail=f"; last line from {node}: {words}", has_ended=has_ended)
    line = last_line("\n".join(srun_lines))
    return _StepOutput(detail=f"; its last line: {line}" if line else "", has_ended=has_ended)


def _address_towards(node: str) -> str:
    """Return the address from which this machine reaches the node, without sending a packet."""
    try:
        where = fields(call("scontrol", "--oneliner", "show", "node", node))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((where.get("NodeAddr", node), 9))
            address: str = probe.getsockname()[0]
            return address
    except OSError as error:
        raise InfrastructureFailed(
            f"the address of node {node} cannot be found ({error.strerror}); set this machine's address in the engine's"
            ' file: address = "..."'
        ) from None


_GPU_WORDS = ("--gres", "--gpus", "-G", "--tres-per", "--ntasks-per-gpu", "--cpus-per-gpu", "--mem-per-gpu")
"""Options of srun that determine which GPUs a step gets."""
_OF_STEPS = (
    *("SLURM_STEP", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_TASKS", "SLURM_CPUS_PER", "SLURM_MEM", "SRUN_"),
    *("SLURM_GPU", "SLURM_GRES", "SLURM_TRES", "SLURM_CPU_BIND", "SLURM_DIST", "SLURM_HINT", "SLURM_THREAD"),
    *("SLURM_CORE_SPEC", "SLURM_EXACT", "SLURM_EXCLUSIVE", "SLURM_OVERCOMMIT", "SLURM_OVERLAP", "SLURM_SPREAD_JOB"),
    *("SLURM_STDINMODE", "SLURM_STDOUTMODE", "SLURM_STDERRMODE", "SLURM_LABELIO", "SLURM_UNBUFFEREDIO"),
    *("SLURM_TIMELIMIT", "SLURM_SIGNAL", "SLURM_WAIT", "SLURM_IMMEDIATE", "SLURM_DEPENDENCY", "SLURM_RESV_PORTS"),
    "SLURM_EXPORT_ENV",  # `sbatch --export=NONE` sets it; steps would get no environment.
)
"""Beginnings of the names of variables that srun reads as options. A job's script has those of its own request, for
example one GPU per task, but an agent needs its whole node."""
