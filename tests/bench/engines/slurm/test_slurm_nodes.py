"""What is read of Slurm's nodes before an allocation, by commands that print what Slurm 22.05 did."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.cli import main
from bench.engines.cluster import Capacity, Meeting, NodeRequest
from bench.engines.slurm.allocation import SlurmAllocation, SlurmPlacement, read_capacity
from bench.engines.slurm.nodes import GpuWords, capacity_of_job, capacity_of_partition, gpus_of
from bench.errors import InfrastructureFailed, Misuse

NODES = """
NodeName=a0 CPUTot=96 ActiveFeatures=ib,h100 Gres=gpu:h100:8(S:0-1) RealMemory=1000000 State=MIXED Partitions=gpu,all
NodeName=a1 CPUTot=64 ActiveFeatures=ib Gres=gpu:h100:4 RealMemory=2000000 State=IDLE Partitions=gpu,all
NodeName=a2 CPUTot=8 ActiveFeatures=ib Gres=gpu:h100:1 RealMemory=1000 State=DOWN*+DRAIN Partitions=gpu,all
NodeName=c0 CPUTot=32 ActiveFeatures=(null) Gres=(null) RealMemory=500000 State=IDLE Partitions=all,cpu
"""
PARTITIONS = "partition=all* nodes=3\npartition=all* nodes=1\npartition=gpu nodes=3\npartition=cpu nodes=1\n"
JOB = (
    "JobId=7 NumNodes=2 NodeList=a[0-1] Features=(null)   Nodes=a0 CPU_IDs=0-15,32 Mem=64000 GRES=gpu:h100:2(IDX:0-1)"
    "   Nodes=a1 CPU_IDs=0-31 Mem=0 GRES=gpu:h100:4(IDX:0-3) MinCPUsNode=1"
)
MIB = 1 << 20


class Recorded:
    """Slurm's commands, in a folder that stands first on the PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("sinfo", PARTITIONS)
        self.configure("gpu,shard")

    def configure(self, gres: str, job_json: str = "no JSON here") -> None:
        """Say which resources Slurm counts, and what it describes a job as in JSON."""
        answers = {
            "*--json*job*": job_json,
            "*config*": f"GresTypes    = {gres}",
            "*job*": JOB,
            "*hostnames*": "a0",
            "*node*": NODES.strip(),
        }
        cases = "\n".join(f"{words}) cat <<'END'\n{answer}\nEND\n;;" for words, answer in answers.items())
        self.write("scontrol", f'case "$*" in {cases} esac', is_script=True)

    def write(self, name: str, text: str, *, is_script: bool = False) -> None:
        """Make a command that prints the text."""
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n" if is_script else f"#!/bin/sh\ncat <<'END'\n{text}END\n")
        path.chmod(0o755)


@pytest.fixture(autouse=True)
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """The commands."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Recorded(tmp_path)


def _capacity(name: str | None, *, nodes: int = 1, is_exclusive: bool = True, **said: Any) -> Capacity:
    words = {"constraint": None, "gpus": GpuWords(), "asks": "asks"} | said
    return capacity_of_partition(name, nodes=nodes, is_exclusive=is_exclusive, **words)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpu:a100:2(S:0-1),shard:8", ("a100", "a100")),
        ("gpu:3", ("GPU", "GPU", "GPU")),
        ("gpu", ("GPU",)),
        ("gpu:h100:1,gpu:a100:1", ("h100", "a100")),
        ("gres/gpu=2", ("GPU", "GPU")),
        ("gpu:nvidia_a100_3g.20gb:1(IDX:0)", ("nvidia_a100_3g.20gb",)),
        ("(null)", ()),
        ("", ()),
    ],
)
def test_gpus_are_counted_with_their_types(text: str, gpus: tuple[str, ...]) -> None:
    assert gpus_of(text) == gpus


def test_a_partition_has_the_least_of_its_nodes_that_are_up() -> None:
    found = _capacity("gpu", nodes=2)
    assert (found.cores, found.memory_bytes, found.gpus) == (64, 1000000 * MIB, ("h100",) * 4)
    assert found.whose == "a node of the partition gpu"


def test_without_a_name_it_is_slurms_own_partition() -> None:
    found = _capacity(None)
    assert (found.cores, found.gpus, found.whose) == (32, (), "a node of the partition all")


def test_of_several_partitions_the_least_of_all_nodes_counts_and_the_largest_limits_the_job() -> None:
    found = _capacity("cpu,gpu", nodes=3)
    assert (found.cores, found.gpus, found.whose) == (32, (), "a node of the partition cpu or gpu")
    with pytest.raises(Misuse, match="--nodes is 4, but the partition cpu or gpu has only 3; use fewer"):
        _capacity("cpu,gpu", nodes=4)
    with pytest.raises(Misuse, match=r'partition "night" is unknown; set partition = .* to one of all, gpu, cpu'):
        _capacity("gpu,night")


@pytest.mark.parametrize(
    ("text", "variable", "whose"),
    [
        ("salloc = ['--partition=gpu']", None, "gpu"),
        ("salloc = ['-p', 'gpu']", None, "gpu"),
        ("partition = 'all'\nsalloc = ['--mem=0', '-pgpu']", "cpu", "gpu"),
        ("", "cpu", "cpu"),
        ("partition = 'gpu'", "cpu", "gpu"),
        ("", None, "all"),
    ],
)
def test_the_partition_is_the_one_that_salloc_takes(
    text: str, variable: str | None, whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is not None:
        monkeypatch.setenv("SALLOC_PARTITION", variable)
    found = read_capacity(NodeRequest(file=_file(tmp_path, text)))
    assert found.whose == f"a node of the partition {whose}"


def test_nodes_without_the_feature_or_the_resources_are_not_looked_at() -> None:
    assert _capacity("gpu", constraint="h100").cores == 96
    assert _capacity("all", gpus=GpuWords(of_node="gpu:8")).cores == 96
    assert _capacity("gpu", constraint="ib&h100").cores == 64  # What has operators is Slurm's own matter.


def test_of_a_shared_node_a_job_has_the_gpus_that_it_asks_for() -> None:
    assert _capacity("gpu", is_exclusive=False).gpus == ()
    assert _capacity("gpu", is_exclusive=False, gpus=GpuWords(of_node="gpu:h100:2")).gpus == ("h100", "h100")


SHARED = "partition = 'gpu'\nexclusive = false\n"


@pytest.mark.parametrize(
    ("text", "variables", "gpus"),
    [
        ("salloc = ['--gres=gpu:2']", {}, 2),
        ("salloc = ['--gpus-per-node', 'h100:2']", {}, 2),
        ("gres = 'gpu:4'\nsalloc = ['--gres', 'gpu:1']", {"SALLOC_GRES": "gpu:2"}, 1),
        ("", {"SALLOC_GPUS_PER_NODE": "2"}, 2),
        ("gres = 'gpu:4'\nsrun = ['--gres=none']", {}, 0),
        ("salloc = ['-G4']", {}, None),
        ("", {"SALLOC_GPUS": "4"}, None),
        ("gres = 'gpu:4'\nsrun = ['--gpus-per-task=1']", {}, None),
    ],
)
def test_gpus_are_those_that_salloc_and_srun_are_asked_for_in_any_way(
    text: str, variables: Mapping[str, str], gpus: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = read_capacity(NodeRequest(file=_file(tmp_path, SHARED + text)))
    assert (None if found.gpus is None else len(found.gpus)) == gpus
    assert any("does not say how many GPUs each node gets" in note for note in found.notes) == (gpus is None)


def test_gpus_that_slurm_does_not_count_are_untold(slurm: Recorded) -> None:
    slurm.configure("(null)")
    assert _capacity("gpu").gpus is None
    assert capacity_of_job("7", nodes=2, asks="").gpus is None


def test_a_job_has_the_least_that_it_was_given_on_a_node() -> None:
    found = capacity_of_job("7", nodes=2, asks="")
    assert (found.cores, found.memory_bytes, found.gpus) == (17, 64000 * MIB, ("h100", "h100"))
    assert found.whose == "a node of job 7"


def _described_job(cpus: Mapping[str, int], gres: Sequence[str] = (), memory: object = 64000) -> str:
    """A job as `scontrol --json` of Slurm 24.05 and later describes it. cpus: by node."""
    allocation = [
        {
            "index": index,
            "name": name,
            "cpus": {"count": count, "used": 0},
            "memory": {"used": 0, "allocated": memory},
            "sockets": [{"index": 0, "cores": [{"index": 0, "status": ["ALLOCATED"]}]}],
        }
        for index, (name, count) in enumerate(cpus.items())
    ]
    nodes = {"count": len(cpus), "select_type": ["ONE_ROW"], "list": ",".join(cpus), "whole": False}
    job = {
        "job_id": 7,
        "comment": "NumNodes=9 Nodes=c0 CPU_IDs=0 Mem=1 GRES=",
        "gres_detail": list(gres),
        "job_resources": {"select_type": ["CORE"], "nodes": {**nodes, "allocation": allocation}},
        "node_count": {"set": True, "infinite": False, "number": len(cpus)},
    }
    return json.dumps({"jobs": [job], "warnings": [], "errors": []})


def test_a_job_is_read_from_json_where_slurm_has_it(slurm: Recorded) -> None:
    job = _described_job({"a0": 17, "a1": 32}, ("gpu:h100:2(IDX:0-1)", "gpu:h100:4(IDX:0-3)"))
    slurm.configure("gpu", job_json=job)
    found = capacity_of_job("7", nodes=2, asks="")
    assert (found.cores, found.memory_bytes, found.gpus) == (17, 64000 * MIB, ("h100", "h100"))
    slurm.configure("gpu", job_json=_described_job({"a0": 0}, memory={"set": True, "infinite": False, "number": 0}))
    found = capacity_of_job("7", nodes=1, asks="")
    assert (found.cores, found.memory_bytes, found.gpus) == (96, 1000000 * MIB, ())
    slurm.configure("gpu", job_json=_described_job({"a0": 4_294_967_294}, memory=99_999_999))
    found = capacity_of_job("7", nodes=1, asks="")
    assert (found.cores, found.implausible) == (96, {"CPU_IDs": 1, "Mem": 1})
    with pytest.raises(Misuse, match="--nodes is 2, but job 7 has only 1; use fewer"):
        capacity_of_job("7", nodes=2, asks="")


def test_a_job_is_read_from_text_where_json_counts_no_cpus(slurm: Recorded) -> None:
    """Slurm 23 lists cores, and no CPUs: with two threads a core these are not the same."""
    nodes = [
        {"nodename": "a0", "cpus_used": 0, "memory_allocated": 9000, "sockets": {"0": {"cores": {"8": "allocated"}}}}
    ]
    job = {"job_id": 7, "job_resources": {"allocated_cores": 1, "allocated_cpus": 0, "allocated_nodes": nodes}}
    slurm.configure("gpu", job_json=json.dumps({"jobs": [job]}))
    assert capacity_of_job("7", nodes=2, asks="").cores == 17


def test_more_nodes_than_there_are_is_refused() -> None:
    with pytest.raises(Misuse, match="--nodes is 4, but the partition gpu has only 3; use fewer"):
        _capacity("gpu", nodes=4)
    with pytest.raises(Misuse, match="--nodes is 3, but job 7 has only 2; use fewer"):
        capacity_of_job("7", nodes=3, asks="")


def test_what_a_site_prints_before_the_answer_is_not_read(slurm: Recorded) -> None:
    job = (
        "JobId=7 JobName=a JobState=FAILED NumNodes=9 UserId=u(1) JobState=RUNNING NodeList=a0 Comment=JobState=FAILED"
    )
    for name, answer in (("sinfo", PARTITIONS), ("scontrol", f"{NODES.strip()}\n{job}\na0\n")):
        slurm.write(name, f"** Welcome to cluster 7 **\nState: quiet, 3 users = all {{\n\n{answer}")
    assert _capacity("gpu", nodes=2).cores == 64
    allocation = _allocation(1)
    assert allocation.state()["JobState"] == "RUNNING"
    assert allocation.nodes() == ("a0",)


def test_answers_that_cannot_be_are_left_out_and_said_once(slurm: Recorded) -> None:
    wrong = "NodeName=a0 CPUTot=65534 Gres=gpu:h100:4294967294 RealMemory=1 State=IDLE Partitions=gpu"
    slurm.write("scontrol", f"{wrong}\n{wrong.replace('a0', 'a1')}\nGresTypes = gpu\n")
    found = _capacity("gpu", nodes=2)
    assert (found.cores, found.memory_bytes, found.gpus) == (None, None, None)
    assert found.implausible == {"CPUTot": 2, "RealMemory": 2, "Gres": 2}
    assert (
        "Slurm: RealMemory 1 of node a0 (plausible: 64 to 1073741824) is left out, and 1 more of RealMemory"
        in found.notes
    )


def test_a_node_whose_gpus_are_unknown_hides_none_of_another(slurm: Recorded) -> None:
    node = "NodeName=a0 CPUTot=64 Gres=gpu:h100:8 RealMemory=500000 State=IDLE Partitions=gpu"
    wrong = node.replace("a0", "a1").replace(":8", ":4294967295")
    slurm.write("scontrol", f"{node}\n{wrong}\nGresTypes = gpu\n")
    assert _capacity("gpu", nodes=2).gpus == ("h100",) * 8


def test_a_job_has_no_more_than_its_node(slurm: Recorded) -> None:
    job = JOB.replace("CPU_IDs=0-31 Mem=0", "CPU_IDs=0-4294967294 Mem=99999999")
    node = "NodeName=a0 CPUTot=64 RealMemory=500000 State=ALLOCATED Partitions=gpu"
    slurm.write("scontrol", f"{job}\n{node}\n{node.replace('a0', 'a1')}\nGresTypes = gpu\n")
    found = capacity_of_job("7", nodes=2, asks="")
    assert (found.cores, found.memory_bytes) == (17, 64000 * MIB)
    assert found.implausible == {"CPU_IDs": 1, "Mem": 1}


def test_nodes_that_get_no_job_are_named_with_slurms_reason(slurm: Recorded) -> None:
    node = (
        "NodeName=a0 CPUTot=4 RealMemory=1000 State=IDLE+DRAIN Partitions=gpu Reason=bad fan [root@2026-11-25T21:33:17]"
    )
    slurm.write("scontrol", f"{node}\nNodeName=a1 CPUTot=8 RealMemory=1000 State=IDLE Partitions=gpu\n")
    found = _capacity("gpu")
    assert found.cores == 8
    assert found.notes == ("1 node of the partition gpu cannot run jobs now: a0 is IDLE+DRAIN (bad fan)",)


def test_a_slurm_that_fails_is_told_in_its_words(slurm: Recorded) -> None:
    slurm.write("sinfo", "echo 'sinfo: error: Unable to contact controller' >&2; exit 1", is_script=True)
    with pytest.raises(InfrastructureFailed, match=r"sinfo --noheader .*: sinfo: error: Unable to contact controller"):
        _capacity("gpu")


def _job_of(slurm: Recorded, *names: str, down: Collection[str] = ()) -> None:
    """Say that the job has these nodes, some of which are lost: Slurm takes them off its list."""
    nodes = "\\n".join(
        f"NodeName={name} CPUTot=1 RealMemory=64 State={'DOWN Reason=gone' if name in down else 'ALLOCATED'}"
        for name in names
    )
    there = "\\n".join(name for name in names if name not in down)
    job = (
        f"*'show job'*) echo 'JobId=7 JobState=RUNNING NodeList=n EndTime=Unknown';; *hostnames*) printf '{there}\\n';;"
    )
    slurm.write("scontrol", f"case \"$*\" in {job}\n*'show node '*) printf '{nodes}\\n';; esac", is_script=True)


def _allocation(nodes: int) -> SlurmAllocation:
    allocation = SlurmAllocation(NodeRequest(nodes=nodes))
    allocation.job = "7"
    return allocation


def test_a_node_that_was_left_out_does_not_come_back_when_another_is_lost(slurm: Recorded) -> None:
    allocation = _allocation(3)
    _job_of(slurm, "n0", "n1", "n2", "n3")
    assert allocation.nodes() == ("n0", "n1", "n2")
    assert allocation.nodes({"n1"}) == ("n0", "n2")
    _job_of(slurm, "n0", "n1", "n2", "n3", down={"n0"})
    assert allocation.nodes({"n1"}) == ("n2", "n3")


def test_a_node_that_was_left_out_may_be_lost(slurm: Recorded) -> None:
    allocation = _allocation(3)
    _job_of(slurm, "n0", "n1", "n2")
    assert allocation.nodes() == ("n0", "n1", "n2")
    _job_of(slurm, "n0", "n1", "n2", down={"n1"})
    assert allocation.nodes({"n1"}) == ("n0", "n2")
    with pytest.raises(InfrastructureFailed, match=r"job 7 has 2 of 3 nodes left: n1 is "):
        allocation.nodes()
    _job_of(slurm, "n0", "n1", "n2", down={"n1", "n2"})
    with pytest.raises(InfrastructureFailed, match=r"job 7 has 1 of 2 nodes left: n2 is "):
        allocation.nodes({"n1"})


def _asked(slurm: Recorded, folder: Path, suite: str, *words: str) -> tuple[int, list[str]]:
    """Run a suite on a Slurm that gives nothing; return the exit code, and which nodes it was asked for."""
    slurm.write("salloc", f'echo "$*" >> {folder}/asked; echo "salloc: error: no" >&2; exit 1', is_script=True)
    (folder / "own.toml").write_text(f"schema_version = 1\n[defaults]\ndevice = 'cpu'\n{suite}")
    places = ["--runs", str(folder / "runs"), "--port", "0"]
    if "--store" not in words:
        places += ["--store", f"sqlite:///{folder}/store.sqlite"]
    code = main.run(["suite", "run", str(folder / "own.toml"), "--engine", "slurm", "--nodes", "3", *places, *words])
    lines = (folder / "asked").read_text().splitlines() if (folder / "asked").exists() else []
    return code, [word for line in lines for word in line.split() if word.startswith("--nodes=")]


TWO = "[case.ddp]\nranks = 2\n[case.fsdp]\nranks = 4\ntags = ['extra']\n"


@pytest.mark.parametrize(
    ("words", "asked"), [([], "--nodes=2"), (["--only", "all"], "--nodes=3"), (["--drop-bad"], "--nodes=3")]
)
def test_slurm_is_asked_for_as_many_nodes_as_a_case_uses_or_for_some_to_spare(
    words: list[str], asked: str, slurm: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _asked(slurm, tmp_path, TWO, *words) == (4, [asked])
    assert ("no case uses more than 2 of 3 nodes" in capsys.readouterr().err) == (asked == "--nodes=2")


def test_slurm_is_asked_for_nothing_where_no_case_can_run(slurm: Recorded, tmp_path: Path) -> None:
    assert _asked(slurm, tmp_path, "[case.ddp]\ndevice = 'cuda'\nranks = 2\n") == (3, [])


def test_slurm_is_asked_for_nothing_where_results_cannot_be_kept(slurm: Recorded, tmp_path: Path) -> None:
    assert _asked(slurm, tmp_path, TWO, "--store", "sqlite:////nowhere/store") == (4, [])


def test_a_dry_run_says_what_slurm_would_be_asked_for(slurm: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--engine", "slurm", "--nodes", "3", "--device", "cpu", "--ranks", "2", "--dry-run"]
    assert main.run(["run", "ddp", *words]) == 0
    assert "salloc --no-kill --nodes=2 " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('environment = {"C=D" = "x"}', 'environment has the key "C=D"; it may be a name of letters'),
        ('environment = {"" = "x"}', 'environment has the key ""; it may be a name of letters'),
        ('environment = {C = "x\\u0000"}', "environment.C has a character that cannot be printed"),
        ('setup = "echo \\u0000"', "setup has a character that cannot be printed"),
        ('salloc = ["--mem=0", "\\u0000"]', "salloc has a character that cannot be printed"),
        ('python = ""', 'python is ""; it may be the path of an interpreter'),
        ("start_limit_s = 0", "start_limit_s is 0; it may be a number of seconds, 1 to 86400"),
        ("start_limit_s = inf", "start_limit_s is Infinity; it may be a number of seconds, 1 to 86400"),
    ],
)
def test_settings_with_which_no_process_can_be_started_are_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(Misuse) as refused:
        SlurmAllocation(NodeRequest(file=_file(tmp_path, text)))
    assert f"{tmp_path}/slurm.toml: {said}" in str(refused.value)


@pytest.mark.parametrize(("text", "limit_s"), [("", 300.0), ("start_limit_s = 1800", 1800.0)])
def test_agents_of_a_job_may_take_as_long_to_start_as_the_settings_allow(
    text: str, limit_s: float, slurm: Recorded, tmp_path: Path
) -> None:
    """Each engine of the job waits that long for a container's image to be imported."""
    _job_of(slurm, "n0", "n1")
    slurm.write("srun", "cat >/dev/null; exec sleep 30", is_script=True)
    allocation = SlurmAllocation(NodeRequest(nodes=2, file=_file(tmp_path, text)))
    allocation.job = "7"
    with allocation.open(tmp_path) as engine:
        assert engine._start_limit.seconds == limit_s


def test_a_job_whose_number_of_nodes_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "abc")
    with pytest.raises(Misuse, match='SLURM_JOB_NUM_NODES is "abc", not a number'), SlurmAllocation(NodeRequest()):
        pass


SRUN = """while [ "$1" != sh ]; do shift; done
{ { "$@" 2>&1; echo $? >&3; } | sed 's/^/1: /' >&2; } 3>&1 | { read -r code; exit "$code"; }
"""
"""An srun that runs the second node's agent here."""


def test_a_setup_that_fails_is_told_with_what_it_printed(slurm: Recorded, tmp_path: Path) -> None:
    _job_of(slurm, "n0", "n1")
    slurm.write("srun", SRUN, is_script=True)
    allocation = SlurmAllocation(NodeRequest(nodes=2, file=_file(tmp_path, "setup = 'echo no such module; false'")))
    allocation.job = "7"
    assert _agent_said(allocation, tmp_path) == (
        "its step ended with code 1; last line from n1: setup failed with code 1: no such module"
    )


def test_a_setup_that_ends_well_is_followed_by_the_agent_which_has_the_input(slurm: Recorded, tmp_path: Path) -> None:
    _job_of(slurm, "n0", "n1")
    slurm.write("srun", SRUN, is_script=True)
    slurm.write("agent", 'echo "$OURS, $*, $(cat)"; exit 3', is_script=True)
    text = f"setup = 'read line; export OURS=set'\npython = '{tmp_path}/agent'"
    allocation = SlurmAllocation(NodeRequest(nodes=2, file=_file(tmp_path, text)))
    allocation.job = "7"
    said = _agent_said(allocation, tmp_path)
    assert said.startswith(
        "its step ended with code 3; last line from n1: set, -P -m bench.engines.node.agent --connect h:1 "
    )
    assert said.endswith(", the key")


def test_agents_of_a_job_without_an_environment_get_that_of_the_command(
    slurm: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_EXPORT_ENV", "NONE")
    monkeypatch.setenv("OURS", "set")
    _job_of(slurm, "n0", "n1")
    slurm.write("srun", f'echo "1: $* export=$SLURM_EXPORT_ENV ours=$OURS" > {tmp_path}/said; exit 1', is_script=True)
    allocation = SlurmAllocation(NodeRequest(nodes=2, file=_file(tmp_path, "")))
    allocation.job = "7"
    _agent_said(allocation, tmp_path)
    said = (tmp_path / "said").read_text()
    assert " --export=ALL " in said
    assert said.endswith("export= ours=set\n")


@pytest.mark.parametrize(
    ("restarts", "code", "words"), [(None, 2, ""), ("1", 2, ""), ("1", 0, " --resume")], ids=["first", "none", "begun"]
)
def test_the_batch_script_of_the_page_resumes_what_a_requeued_job_had_begun(
    restarts: str | None, code: int, words: str, slurm: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[4] / "docs" / "clusters" / "slurm.md").read_text()
    (script,) = (text for text in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "--requeue" in text)
    if restarts is not None:
        monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    slurm.write("observatory", f'case "$*" in *--dry-run) exit {code};; esac; echo "$*"', is_script=True)
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"suite run nightly --engine slurm --nodes 4{words}\n"


def _file(folder: Path, text: str) -> Path:
    path = folder / "slurm.toml"
    path.write_text(f'address = "127.0.0.1"\n{text}\n')
    return path


def _agent_said(allocation: SlurmAllocation, folder: Path) -> str:
    """Start the agents' step, wait for its end, and return what is told of it."""
    (folder / "key").write_text("the key")
    placement = SlurmPlacement(allocation, ("n0", "n1"))
    placement.start(Meeting(host="h", port=1, key_file=folder / "key"))
    assert placement._step is not None
    placement._step.wait()
    said = placement.failure()
    placement.stop()
    assert said is not None
    return said


def test_a_job_that_slurm_has_forgotten_is_told_as_accounting_knows_it(slurm: Recorded) -> None:
    allocation = SlurmAllocation(NodeRequest(nodes=2))
    allocation.job = "7"
    slurm.write("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", is_script=True)
    slurm.write("sacct", "PREEMPTED\n")
    assert allocation.why_ended() == "job 7 has ended: PREEMPTED"
    slurm.write("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1", is_script=True)
    gone = allocation.why_ended()
    assert gone is not None
    assert gone.startswith("job 7 is gone: scontrol --oneliner show job 7: slurm_load_jobs error: Invalid job id")
