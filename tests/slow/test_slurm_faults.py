"""Faults on a real Slurm: nodes, jobs, runners and ranks that end, what is told of them, and how the suite goes on."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from bench.errors import CASE_FAILED, FINE, INFRASTRUCTURE
from bench.store.history import History
from bench.suite.folder import suite_run_folders
from bench.suite.ledger import LEDGER, SuiteState, fold, read_ledger
from tests.slow.clusters.nights import Night, defaults, wait
from tests.slow.clusters.slurm import Slurm, run_slurm
from tests.slow.clusters.slurm_nights import LONG, SETTINGS, SUITE, SlurmNight, agents_of
from tests.slow.clusters.tcp_proxy import TcpProxy
from tests.support.servers import program, run_postgres

pytestmark = [pytest.mark.slow, pytest.mark.stack, pytest.mark.timeout(300)]

IN_RANKS = {
    "raise": "error",
    "kill": "killed",
    "stop": "hung",
    "wait": "hung",
    "hang": "hung",
    "exit": "error",
    "leave": "left",
    "memory": "error",
}
"""What is told of each fault of one rank."""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    """Four nodes."""
    with run_slurm(4) as slurm:
        yield slurm


def _begin(night: Night, *words: str, **variables: str) -> subprocess.Popen[str]:
    """Start the suite, and wait until its ranks measure."""
    process = night.start(*words, **variables)
    wait(lambda: night.measured() > 40)
    return process


@pytest.fixture(autouse=True)
def _all_idle(slurm: Slurm) -> Iterator[None]:
    """Have each test find all nodes idle."""
    yield
    wait(lambda: not slurm.jobs() and slurm.idle() == len(slurm.nodes))


def _state(night: Night) -> SuiteState:
    """What the ledger of the only suite run says."""
    (folder,) = suite_run_folders(night.runs)
    return fold(read_ledger(folder / LEDGER).records)


@pytest.mark.parametrize("nodes", [2, 4])
def test_the_shipped_smoke_suite_passes(nodes: int, slurm: Slurm, short_path: Path) -> None:
    night = SlurmNight(short_path, slurm, SUITE)
    code, cases, messages = night.end(night.start(f"--nodes={nodes}", suite="smoke"))
    assert code == FINE, messages
    ran = {name: case for name, case in cases.items() if case["outcome"] != "left_out"}
    assert len(ran) > 15
    assert {case["outcome"] for case in ran.values()} == {"done"}
    assert all(
        case["summary"]["case"]["nodes"] == min(nodes, case["summary"]["case"]["ranks"]) for case in ran.values()
    )


def test_a_node_whose_clock_is_minutes_off_ends_the_suite_or_is_left_out(slurm: Slurm, short_path: Path) -> None:
    program("faketime", "faketime")
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
    night = SlurmNight(short_path, slurm, SUITE.partition("[case.collectives]")[0])
    off = f"FAKETIME=+5m FAKETIME_DONT_FAKE_MONOTONIC=1 LD_PRELOAD={library}"
    setup = f"""setup = '[ "$SLURM_NODEID" != 1 ] || export {off}'\n"""
    night.write_settings(SETTINGS + setup)
    code, _, messages = night.run("--nodes=3", "--preflight")
    assert code == INFRASTRUCTURE, messages
    bad = slurm.nodes[1]
    assert f"pre-flight: {bad} is bad: its clock is 5.0 min ahead of the others'" in messages
    assert f"pre-flight: {bad}: no measurement is possible with these nodes" in messages
    assert _state(night).outcome is None
    code, cases, messages = night.run("--nodes=3", "--drop-bad", "--resume")
    assert code == FINE, messages
    assert f"pre-flight: continuing without {bad}" in messages
    assert {name: case["summary"]["case"]["nodes"] for name, case in cases.items()} == {
        "single": 1,
        "ddp": 2,
        "fsdp": 2,
    }


def test_the_rank_with_a_fault_is_the_root_cause_on_whichever_node(slurm: Slurm, short_path: Path) -> None:
    """Two nodes of two ranks each, the faulty one is on the second."""
    head = defaults(trials=1, limit_s=10)
    drills = (
        f'[case.{kind}]\nstrategy = "ddp"\nranks = 4\nseed = {seed}\ninject = "{kind}@2:2"\n'
        for seed, kind in enumerate(IN_RANKS)
    )
    night = SlurmNight(
        short_path, slurm, f"{head}{''.join(drills)}[case.afterwards]\nstrategy = 'ddp'\nranks = 4\nseed = 99\n"
    )
    code, cases, messages = night.run("--nodes=2")
    assert code == CASE_FAILED, messages
    causes = {kind: cases[kind]["summary"]["cause"] for kind in IN_RANKS}
    assert {kind: cause["kind"] for kind, cause in causes.items()} == IN_RANKS
    assert {(cause["rank"], cause["step"]) for cause in causes.values()} == {(2, 2)}
    assert cases["afterwards"]["outcome"] == "done"
    wait(lambda: not slurm.jobs())


def test_a_node_that_is_lost_is_named_and_the_suite_goes_on_in_another_job(slurm: Slurm, short_path: Path) -> None:
    night = SlurmNight(short_path, slurm, LONG)
    process = _begin(night, "--nodes=2")
    slurm.lose("node1")
    try:
        code, _, messages = night.end(process)
        assert code == INFRASTRUCTURE, messages
        assert "the agent of node1 ended" in messages
        assert (
            "has 1 of 2 nodes left: node1 is DOWN (the power is gone); continue in another job with --resume"
            in messages
        )
        assert _state(night).outcome == "interrupted"
        wait(lambda: not slurm.jobs())
        code, cases, messages = night.run("--nodes=2", "--resume")
        assert code == FINE, messages
        assert cases["ddp"]["summary"]["trials_done"] == 2
    finally:
        slurm.bring_back("node1")


def test_a_job_with_a_node_to_spare_goes_on_without_the_one_that_is_lost(slurm: Slurm, short_path: Path) -> None:
    said = subprocess.run(
        ["salloc", "--no-shell", "--no-kill", "--nodes=3", "--exclusive", "--time=10"],
        env=slurm.environment, capture_output=True, text=True, check=True, timeout=60,
    ).stderr  # fmt: skip
    job = said.split("job allocation ")[1].split()[0]
    night = SlurmNight(short_path, slurm, LONG)
    try:
        process = _begin(night, "--nodes=2", SLURM_JOB_ID=job, SLURM_JOB_NUM_NODES="3")
        slurm.lose("node1")
        code, cases, messages = night.end(process)
        assert code == FINE, messages
        assert "the agent of node1 ended" in messages
        assert cases["ddp"]["summary"]["trials_done"] == 2
    finally:
        slurm.call("scancel", job)
        slurm.bring_back("node1")


def test_a_job_that_more_urgent_ones_displace_is_told(slurm: Slurm, short_path: Path) -> None:
    night = SlurmNight(short_path, slurm, LONG)
    process = _begin(night, "--nodes=2")
    urgent = slurm.call(
        *("sbatch", "--parsable", "--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null"),
        *("--chdir=/", "--wrap=true"),
    ).strip()
    try:
        code, _, messages = night.end(process)
    finally:
        subprocess.run(["scancel", urgent], env=slurm.environment, capture_output=True, timeout=60)
    assert code == INFRASTRUCTURE, messages
    assert "has ended: PREEMPTED" in messages
    assert _state(night).outcome == "interrupted"
    wait(lambda: not agents_of(slurm))


def test_a_requeued_job_goes_on_where_it_was(slurm: Slurm, short_path: Path) -> None:
    night = SlurmNight(short_path, slurm, LONG)
    script = short_path / "night.sh"
    command = " ".join(night.command("--nodes=2"))
    script.write_text(f"#!/bin/sh\nexec {command} ${{SLURM_RESTART_COUNT:+--resume}}\n")
    words = [
        "sbatch",
        "--parsable",
        "--requeue",
        "--nodes=2",
        "--exclusive",
        "--time=20",
        f"--output={short_path}/said",
    ]
    job = subprocess.run(
        [*words, "--open-mode=append", str(script)],
        env=night.environment, capture_output=True, text=True, check=True, timeout=60,
    ).stdout.strip()  # fmt: skip
    try:
        wait(lambda: night.measured() > 40)
        slurm.call("scontrol", "requeue", job)
        wait(lambda: "PENDING" in slurm.call("scontrol", "show", "job", job))
        assert _state(night).outcome in (None, "interrupted")
        slurm.call("scontrol", "update", f"jobid={job}", "starttime=now")  # Else Slurm lets it wait for two minutes.
        wait(lambda: not slurm.jobs())
    finally:
        subprocess.run(["scancel", job], env=slurm.environment, capture_output=True, timeout=60)
    said = (short_path / "said").read_text()
    assert " continues" in said
    assert (_state(night).outcome, len(_state(night).case("ddp").trials_done)) == ("done", 2), said


def test_the_job_of_a_killed_runner_is_given_back(slurm: Slurm, short_path: Path) -> None:
    night = SlurmNight(short_path, slurm, LONG)
    process = _begin(night, "--nodes=2")
    process.kill()
    process.communicate()
    wait(lambda: not slurm.jobs())
    wait(lambda: not agents_of(slurm))
    assert _state(night).outcome is None


def test_no_trial_begins_that_slurm_would_end(slurm: Slurm, short_path: Path) -> None:
    night = SlurmNight(short_path, slurm, LONG, SETTINGS.replace('time = "20"', 'time = "1"'))
    code, _, messages = night.run("--nodes=2")
    assert code == INFRASTRUCTURE, messages
    assert "too soon for a trial; continue in another job with --resume" in messages
    assert _state(night).outcome == "interrupted"


FILLING = f"""{defaults(trials=1).replace("trace_steps = 1", "trace_steps = 0")}
[case.first]
strategy = "ddp"
ranks = 4
[case.second]
strategy = "fsdp"
ranks = 4
steps = 400
limit_s = 200
"""
"""Its second case logs more than a small disk has room for."""


def test_a_store_that_is_gone_for_a_while_loses_nothing(slurm: Slurm, short_path: Path) -> None:
    with run_postgres() as server, closing(TcpProxy(server.port)) as proxy:
        night = SlurmNight(short_path, slurm, FILLING)
        store = replace(server, port=proxy.port).url("postgres")
        process = _begin(night, "--nodes=2", f"--store={store}")
        with proxy.gone():
            wait(
                lambda: "the suite continues, and its results stay in the run folders" in night.messages(),
                night.messages,
            )
        code, cases, messages = night.end(process)
        assert code == FINE, messages
        assert "the store answers again;" in messages
        with History(store, writable=False) as history:
            stored = history.runs(10)
            (suite_run,) = history.suite_runs(10)
    members = {run.purpose.member.case: run.outcome for run in stored if run.purpose.member is not None}
    assert members == dict.fromkeys(cases, "done")
    assert len(stored) == len(cases) == 2
    assert suite_run.outcome == "done"


SMALL = "150k"


def _small(folder: str, size: str, *, then: str) -> list[str]:
    """Words that run a shell's line where a file system of this size is mounted on the folder, for it alone."""
    words = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o size={size} none "{folder}" && {then}']
    if subprocess.run([*words[:-1], words[-1].partition("&&")[0]], capture_output=True).returncode:
        pytest.skip("no right to mount a small file system here")
    return words


def test_a_full_disk_of_the_runner_ends_the_suite_and_room_lets_it_go_on(slurm: Slurm, short_path: Path) -> None:
    night = SlurmNight(short_path, slurm, FILLING)
    night.runs.mkdir(parents=True)
    again = (
        f'mount -o remount,size=64m {night.runs}; "$@" --resume; echo "code $?"; cp -r {night.runs}/suites {short_path}'
    )
    ended = subprocess.run(
        [*_small(str(night.runs), SMALL, then=f'"$@"; echo "code $?"; {again}'), "sh", *night.command("--nodes=2")],
        env=night.environment, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert re.findall(r"^code (\d+)$", ended.stdout, re.MULTILINE) == ["4", "0"], ended.stderr
    assert "No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr
    (ledger,) = (short_path / "suites").glob(f"*/{LEDGER}")
    state = fold(read_ledger(ledger).records)
    assert {name: len(case.trials_done) for name, case in state.cases.items()} == dict.fromkeys(state.cases, 1)


def test_a_full_disk_of_a_node_names_its_rank_and_room_lets_the_suite_go_on(slurm: Slurm, short_path: Path) -> None:
    """Agents of the second node have a folder for temporary files that is soon full; both see that of the first."""
    night = SlurmNight(short_path, slurm, FILLING)
    python, folder = short_path / "python", short_path / "second"
    folder.mkdir()
    small = shlex.join(_small(str(folder), SMALL, then=f'TMPDIR={folder} exec {sys.executable} "$@"'))
    python.write_text(f'#!/bin/sh\n[ "$SLURM_NODEID" = 1 ] && exec {small} sh "$@"\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    night.write_settings(SETTINGS.replace(sys.executable, str(python)))
    code, cases, messages = night.run("--nodes=2")
    assert code == INFRASTRUCTURE, messages
    assert cases["first"]["outcome"] == "done"
    cause = cases["second"]["summary"]["cause"]
    assert cause["kind"] == "disk"
    assert cause["rank"] in (2, 3)
    assert "could not write its log: No space left on device" in messages
    night.write_settings(SETTINGS)
    code, cases, messages = night.run("--nodes=2", "--resume")
    assert code == FINE, messages
    assert {case["outcome"] for case in cases.values()} == {"done"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            'python = "/usr/bin/python3"',
            r": /usr/bin/python3 on node\d has no module bench; install the same package there",
        ),
        (
            'python = "/nowhere/python"',
            r": node\d cannot run /nowhere/python; set an interpreter that has the package",
        ),
        (
            f'python = "{sys.executable}"\nenvironment = {{ PYTHONPATH = "FOLDER" }}',
            r"last line from node\d: agent: .*this agent has version 9.9 \(protocol \d+\), but the runner has version",
        ),
    ],
)
def test_a_node_with_another_package_or_none_is_named_in_one_line(
    settings: str, said: str, slurm: Slurm, short_path: Path
) -> None:
    night = SlurmNight(short_path, slurm, LONG)
    other = short_path / "parallel_observatory-9.9.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: parallel-observatory\nVersion: 9.9\n")
    night.write_settings('address = "127.0.0.1"\n' + settings.replace("FOLDER", str(short_path)))
    code, _, messages = night.run("--nodes=2")
    assert code == INFRASTRUCTURE, messages
    assert re.search(said, messages), messages
    assert "Traceback" not in messages
    wait(lambda: not slurm.jobs())
