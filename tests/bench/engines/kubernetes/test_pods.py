"""A suite in pods: the lines of the manifest, run as processes of this machine, and the engine of the first pod."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from bench.engines.cluster import NodeRequest
from bench.engines.kubernetes.engine import INDEX, PodAllocation
from bench.engines.kubernetes.pod import FINE, attend, own_key, suite_run_to_resume
from bench.engines.node.agent import UNREACHED
from bench.engines.wire.frames import new_key, read_key, write_key
from bench.errors import Misuse
from bench.suite.file import read_suite
from bench.suite.folder import begin
from tests.bench.engines.kubernetes.pods import HEAD, WITHIN_S, Pods, agents_beneath, ended

pytestmark = pytest.mark.timeout(300)


@pytest.mark.slow
def test_a_suite_runs_over_two_pods_which_both_end_well(short_path: Path) -> None:
    pods = Pods(short_path, HEAD + "[case.ddp]\nranks = 2\n", nodes=2)
    others, first = pods.start(1), pods.start(0)
    with ended(first, others):
        out, said = first.communicate(timeout=WITHIN_S)
        assert first.returncode == FINE, said
        assert "waiting for the agents of 2 pods" in said
        assert "done: 1 done" in out
        _, last = others.communicate(timeout=WITHIN_S)
        assert others.returncode == FINE, last
        assert last.splitlines()[-1] == "the runner no longer listens: the suite or the first pod has ended"
    (ddp,) = (pods.results / "runs").glob("*-ddp-*")
    assert {path.name for path in ddp.glob("node*.jsonl")} == {"node0.jsonl", "node1.jsonl"}
    assert (pods.results / "history.sqlite").is_file()
    key = (pods.secret / "key").read_text().strip()
    assert key not in said + last
    assert [path for path in pods.results.rglob("*") if path.is_file() and key.encode() in path.read_bytes()] == []


LONG = HEAD + "[case.ddp]\nranks = 2\ntrials = 2\nsteps = 200\n"


def _wait_for_steps(pods: Pods, first: subprocess.Popen[str]) -> None:
    until_s = time.monotonic() + WITHIN_S
    while not any(log.stat().st_size > 2000 for log in (pods.results / "runs").glob("*-ddp-*/rank*.jsonl")):
        assert first.poll() is None
        assert time.monotonic() < until_s
        time.sleep(0.1)


@pytest.mark.slow
def test_an_agent_that_dies_comes_again_for_the_next_engine(short_path: Path) -> None:
    pods = Pods(short_path, LONG, nodes=2)
    others, first = pods.start(1), pods.start(0)
    with ended(first, others):
        _wait_for_steps(pods, first)
        (agent,) = agents_beneath(others)
        agent.send_signal(signal.SIGKILL)
        out, said = first.communicate(timeout=WITHIN_S)
        assert first.returncode == FINE, said
        (line,) = (line for line in said.splitlines() if "attempt 2 of 2 keeps" in line)
        assert "the agent of localhost-1 ended" in line
        assert "done: 1 done" in out
        others.communicate(timeout=WITHIN_S)
        assert others.returncode == FINE


@pytest.mark.slow
def test_after_a_restart_the_suite_goes_on_and_another_job_set_begins_its_own(short_path: Path) -> None:
    pods = Pods(short_path, LONG, nodes=1)
    first = pods.start(0)
    with ended(first):
        _wait_for_steps(pods, first)
        family = psutil.Process(first.pid).children(recursive=True)
        os.killpg(first.pid, signal.SIGKILL)
        psutil.wait_procs(family, timeout=WITHIN_S)
    (begun,) = pods.suite_runs()
    for job, names in (("uid-1", 1), ("uid-2", 2)):
        again = pods.start(0, job=job)
        with ended(again):
            _, said = again.communicate(timeout=WITHIN_S)
            assert again.returncode == FINE, said
        assert len(pods.suite_runs()) == names
        assert (f"suite run {begun} continues" in said) == (job == "uid-1")


@pytest.mark.slow
def test_a_pod_that_is_ended_ends_its_agent(short_path: Path) -> None:
    pods = Pods(short_path, HEAD + "[case.ddp]\nranks = 2\n", nodes=2)
    alone = pods.start(1)
    with ended(alone):
        until_s = time.monotonic() + WITHIN_S
        while not (agents := agents_beneath(alone)):
            assert time.monotonic() < until_s
            time.sleep(0.1)
        alone.terminate()
        assert alone.wait(timeout=WITHIN_S) == 143
        assert psutil.wait_procs(agents, timeout=WITHIN_S)[1] == []


def test_an_image_without_the_package_is_told_in_one_line(short_path: Path) -> None:
    pods = Pods(short_path, HEAD + "[case.single]\nranks = 1\n", nodes=1, image="foreign:1", python="/nothing/python")
    pod = pods.start(0)
    _, said = pod.communicate(timeout=WITHIN_S)
    assert pod.returncode == 2
    (line,) = said.splitlines()
    assert line == (
        "the image foreign:1 has no /nothing/python with the package parallel-observatory; build it with"
        ' dashboards/stack/Dockerfile, or name its interpreter in the engine\'s file: python = "..."'
    )


@pytest.mark.parametrize("content", [None, "", "short\n"])
def test_a_secret_without_a_key_ends_the_pod_in_one_line(content: str | None, short_path: Path) -> None:
    pods = Pods(short_path, HEAD + "[case.single]\nranks = 1\n", nodes=1)
    (pods.secret / "key").unlink()
    if content is not None:
        (pods.secret / "key").write_text(content)
    pod = pods.start(0)
    _, said = pod.communicate(timeout=WITHIN_S)
    assert pod.returncode == 2
    (line,) = said.splitlines()
    what = (
        f"the suite's key cannot be read from {pods.secret}/key"
        if content is None
        else "holds no key, which is a line of 64"
    )
    assert line.startswith("pod 0: ")
    assert what in line


# The parts


def test_the_key_becomes_a_file_of_this_user_alone(tmp_path: Path) -> None:
    key = new_key()
    write_key(tmp_path / "..data", key)
    (tmp_path / "..data").chmod(0o440)
    (tmp_path / "key").symlink_to("..data")  # As kubelet mounts it.
    (tmp_path / "own").mkdir()
    assert read_key(own_key(tmp_path / "key", tmp_path / "own")) == key
    assert read_key(own_key(tmp_path / "key", tmp_path / "own")) == key  # A container may start twice in a pod.


def test_an_agent_that_never_meets_its_runner_ends_the_pod_as_a_failure(capfd: pytest.CaptureFixture[str]) -> None:
    assert attend(["sh", "-c", f"exit {UNREACHED}"], within_s=0.0) == 4
    assert capfd.readouterr().err == "the first pod did not answer within 0 s; it may be waiting for a node\n"


def test_a_job_set_goes_on_only_with_what_it_began_itself(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(HEAD + "[case.single]\nranks = 1\n")
    suite, runs = read_suite(tmp_path / "tiny.toml"), tmp_path / "runs"
    begin(suite, runs).close()  # Of another night: it began earlier, and so does not count.
    later_s = time.time() + 60
    assert suite_run_to_resume(runs, "tiny", "uid", now_s=later_s) is None
    assert suite_run_to_resume(runs, "tiny", "uid") is None
    (runs / "suites").rename(tmp_path / "elsewhere")
    assert suite_run_to_resume(runs, "tiny", "other", now_s=later_s - 120) is None
    begin(suite, runs).close()
    begin(read_suite(tmp_path / "tiny.toml", ["name=tiny-more"]), runs).close()
    found = suite_run_to_resume(runs, "tiny", "other")
    assert found is not None
    assert found.split("-")[2:-1] == ["tiny"]
    assert suite_run_to_resume(runs, "tiny", "") is None


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (None, "works only inside the pods of a JobSet; `observatory suite render SUITE --engine kubernetes"),
        ("3", "this pod has index 3, but a suite runs only in the pod with index 0"),
    ],
)
def test_outside_of_the_first_pod_the_engine_says_so(
    index: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(INDEX, raising=False)
    if index is not None:
        monkeypatch.setenv(INDEX, index)
    with pytest.raises(Misuse, match=said):
        PodAllocation(NodeRequest(nodes=2))


@pytest.mark.parametrize(
    ("mode", "said"), [(0o644, "others can read or write the key file"), (None, "No such file or directory; mount")]
)
def test_a_key_file_that_cannot_be_used_is_refused(
    mode: int | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INDEX, "0")
    if mode is not None:
        write_key(tmp_path / "key", new_key())
        (tmp_path / "key").chmod(mode)
    (tmp_path / "pod.toml").write_text(f'key_file = "{tmp_path}/key"\naddress = "127.0.0.1"\n')
    with pytest.raises(Misuse, match=said):
        PodAllocation(NodeRequest(nodes=2, file=tmp_path / "pod.toml"))
