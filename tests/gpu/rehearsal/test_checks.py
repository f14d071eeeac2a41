"""Every check on recorded answers of a healthy machine, and on one answer that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import click
import pytest

from collectors.metrics import agent, results
from collectors.metrics import probes as probes_metrics
from tests.gpu.check import Check
from tests.gpu.checks.foundation import pytest_counts
from tests.gpu.checks.several import contexts_by_process
from tests.gpu.rehearsal.recorded import Change, RecordedCommands, dry_context, with_estimate, with_json
from tests.gpu.roster import CHECKS
from tests.gpu.runner import Result, Setting, judge
from tests.gpu.session import Completed, Program, Session
from workloads.spec import Device

BY_NAME = {check.name: check for check in CHECKS}
EARLIER = {"training": {"step_ms": 100.0, "peak_gib": 20.0}}


def _judged(
    check: Check,
    folder: Path,
    change: Change | None = None,
    *,
    device: Device = "cuda",
    page: Callable[[str], str] = lambda text: text,
    earlier: Mapping[str, Mapping[str, float]] = EARLIER,
) -> Result:
    commands = RecordedCommands(folder, page=page) if change is None else RecordedCommands(folder, change, page)
    session = Session(
        folder=folder, device=device, gpus=8, commands=commands, earlier=lambda name: earlier.get(name, {})
    )
    setting = Setting(output=folder, device=device, gpus=8, commit=None, budget_s=1.0)
    return judge(check, session, setting, say=lambda text: None)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_nothing_is_off_on_a_healthy_machine(check: Check, tmp_path: Path) -> None:
    result = _judged(check, tmp_path)
    off = [one for one in result.findings if one.verdict == "off"]
    assert (result.verdict in ("ok", "seen"), result.reason, off) == (True, "", [])


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_every_verdict_has_its_bound_and_its_source(check: Check, tmp_path: Path) -> None:
    for one in _judged(check, tmp_path).findings:
        assert one.verdict == "seen" or (one.expected and one.source)


@pytest.mark.parametrize("check", [check for check in CHECKS if check.is_rehearsed], ids=lambda check: check.name)
def test_the_commands_of_a_rehearsal_are_understood_too(check: Check, tmp_path: Path) -> None:
    assert _judged(check, tmp_path, device="cpu").verdict in ("ok", "seen")


def _code(code: int, *words: str) -> Change:
    """Programs with these words end with another code."""

    def change(program: Program, completed: Completed) -> Completed:
        return replace(completed, code=code) if set(words) <= set(program.words) else completed

    return change


def _text(old: str, new: str, *words: str) -> Change:
    """Programs with these words print something else."""

    def change(program: Program, completed: Completed) -> Completed:
        if not set(words) <= set(program.words):
            return completed
        assert old in completed.out
        return replace(completed, out=completed.out.replace(old, new))

    return change


_WRONG: list[tuple[str, Change, str]] = [
    ("versions", with_json("versions", torch="2.14.0"), "torch"),
    ("versions", with_json("versions", driver="570.124.04"), "driver"),
    ("versions", with_json("versions", nvml_s=9.0), "NVML's first start"),
    ("fork", with_json("fork", loaded=["libcuda.so"]), "libraries in our forkserver"),
    ("selfring", with_json("selfring", entered=["all_gather_into_tensor_coalesced"]), "collectives by our reader"),
    ("selfring", with_json("selfring", messages=0), "messages in the Flight Record"),
    ("refusals", _code(-11, "ring_attention"), "ring_attention"),
    ("window", with_json("windows", is_device=False), "spans"),
    ("window", with_json("plain_training", kernel_s=1e-4), "kernels of a step, ours / plain profile's"),
    ("tests", _text("12 passed", "1 failed, 11 passed", "pytest"), "tests"),
    ("matmul", with_estimate(probes_metrics.RUN_MATMUL_FLOPS, 1.2e15), "largest product / data sheet"),
    ("matmul", with_estimate(probes_metrics.RUN_MATMUL_FLOPS, 300e12, m="8192"), "8192 rows, ours / graph"),
    ("fp32", with_estimate(probes_metrics.RUN_MATMUL_FLOPS, 210e12), "largest product / data sheet"),
    ("copies", with_estimate(probes_metrics.RUN_COPY_BANDWIDTH, 5e12, kind="device_copy"), "device_copy / data sheet"),
    ("copies", with_estimate(probes_metrics.RUN_COPY_BANDWIDTH, 80e9, kind="host_to_device"), "host_to_device"),
    ("training", with_json("plain_training", step_s=0.09), "our step rate / the plain loop's"),
    ("training", with_json("plain_training", peak_bytes=2**30), "our peak / the plain loop's"),
    ("training", with_estimate(results.RUN_MFU, 1.1), "MFU"),
    ("compiled", with_estimate(results.RUN_STEP_SECONDS, 0.2), "eager's step / compiled"),
    ("cuda_graphs", with_estimate(results.RUN_TRACED_RATIO, 0.9, part="idle"), "compute + idle + exposed"),
    ("checkpointed", with_estimate(results.RUN_STEP_SECONDS, 0.2), "full, times the step"),
    ("observer", with_json("memory_account", phase_s=4e-4), "looks / a step of 50 ms"),
    ("leaving", with_json("leaving", free_s=60.0), "memory free after"),
    ("faults", _text('"rank": 0', '"rank": null', "kill@0:7"), "kill: blamed"),
    ("faults", _code(0, "hang@0:7"), "hang: blamed"),
    ("shared", with_estimate(results.RUN_PAYLOAD_BYTES, 0.0, account="counted"), "ddp: traffic"),
    ("shared", _text("agrees", "disagrees", "--check-convergence"), "ddp --check-convergence"),
    ("doctor", _text("1755000000", "300000000", "doctor", "--format"), "SM clock, doctor / nvidia-smi"),
    ("doctor", _text("generation 5", "generation 1", "doctor", "--format"), "PCIe"),
    ("doctor", _text("not permitted", "not always", "doctor", "--format"), "fields that fail at times"),
    ("attention", with_json("attention", kernels={"s": {"cudnn": {"step_s": 1, "apart": 1.0}}}), "cudnn at s"),
    ("busbw_8", with_estimate(probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH, 90e9), "all_gather of 1024 MiB"),
    ("busbw_8", with_estimate(probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH, 600e9), "all_reduce of 1024 MiB"),
    ("overlap_2", with_estimate(results.RUN_OVERLAP_RATIO, 0.0), "fsdp: overlap / communication"),
    ("bubble_8", with_estimate(results.RUN_BUBBLE_RATIO, 0.4, account="measured"), "measured less expected"),
    ("blame_2", _text('"rank": 1', '"rank": 0', "raise@1:7"), "raise: blamed"),
    ("ending_8", _code(3, "fsdp"), "fsdp with a snapshot"),
    ("clocks_2", with_json("windows", apart_ns=21_000), "ends apart"),
    ("counters", with_json("messages", counted_bytes={"sent": 20 << 20}), "counted sent / sent"),
    ("strategies_2", _text('"done"', '"timed_out"', "ulysses"), "ulysses"),
]


@pytest.mark.parametrize(("name", "change", "what"), _WRONG, ids=[f"{name}-{what}" for name, _, what in _WRONG])
def test_what_is_wrong_is_off(name: str, change: Change, what: str, tmp_path: Path) -> None:
    result = _judged(BY_NAME[name], tmp_path, change)
    assert any(one.verdict == "off" and one.what.startswith(what) for one in result.findings), result


def test_a_scrape_that_costs_too_much_is_off(tmp_path: Path) -> None:
    def dear(text: str) -> str:
        name = agent.AGENT_CPU_SECONDS.name
        lines = [line for line in text.splitlines() if not line.startswith(f"{name}{{")]
        cost[0] += 0.05
        return "\n".join([*lines, f"{name} {cost[0]}"])

    cost = [0.0]
    result = _judged(BY_NAME["serving"], tmp_path, page=dear)
    assert [one.what for one in result.findings if one.verdict == "off"] == ["CPU of a scrape"]


def test_a_run_that_fails_makes_the_check_fail_with_its_cause(tmp_path: Path) -> None:
    def change(program: Program, completed: Completed) -> Completed:
        return replace(completed, code=70, out="", err="observatory: this is our own bug: KeyError\n")

    result = _judged(BY_NAME["single"], tmp_path, change)
    assert result.verdict == "failed"
    assert "code 70: observatory: this is our own bug: KeyError" in result.reason


def test_a_machine_without_nvidia_smi_skips_what_asks_it(tmp_path: Path) -> None:
    result = _judged(BY_NAME["doctor"], tmp_path, _code(127, "nvidia-smi"))
    assert (result.verdict, result.reason) == ("skipped", "there is no nvidia-smi here")


def test_nvlink_counters_that_do_not_answer_are_told_and_not_judged(tmp_path: Path) -> None:
    result = _judged(BY_NAME["counters"], tmp_path, with_json("messages", counted_bytes={}))
    assert [one.seen for one in result.findings] == ["none answers"]


def test_without_an_earlier_result_nothing_is_compared_with_it(tmp_path: Path) -> None:
    result = _judged(BY_NAME["compiled"], tmp_path, earlier={})
    assert [one.what for one in result.findings] == ["median step", "kind of Triton's kernels"]


def test_no_rehearsed_command_names_a_gpu(tmp_path: Path) -> None:
    for check in CHECKS:
        if check.is_rehearsed:
            folder = tmp_path / check.name
            folder.mkdir()
            commands = RecordedCommands(folder)
            session = Session(folder=folder, device="cpu", gpus=8, commands=commands, earlier=lambda name: {})
            list(check.run(session))
            assert not any({"cuda", "nvidia-smi"} & set(program.words) for program in commands.programs)


def test_names_of_checks_are_file_names_and_differ() -> None:
    assert len(BY_NAME) == len(CHECKS)
    assert all(check.name.replace("_", "").isalnum() for check in CHECKS)


def test_all_checks_of_one_gpu_fit_into_a_few_calls() -> None:
    limits_s = [check.limit_s for check in CHECKS if check.gpus == 1]
    assert max(limits_s) <= 180
    assert sum(limits_s) <= 3 * 540 + 180


def test_an_unknown_word_of_a_command_line_is_found() -> None:
    with pytest.raises(click.UsageError, match="--stepz"):
        dry_context(["run", "single", "--stepz", "5"])


@pytest.mark.parametrize(
    ("out", "counts"),
    [
        ("....\n4 passed in 1.22s\n", {"passed": 4}),
        (
            "=== 1 failed, 3 passed, 2 skipped, 1 warning in 61.02s (0:01:01) ===",
            {"failed": 1, "passed": 3, "skipped": 2, "warning": 1},
        ),
        ("ERROR: file or directory not found", {}),
        ("no tests ran in 0.01s", {}),
    ],
)
def test_the_counts_of_pytest_are_read_from_its_last_line(out: str, counts: dict[str, int]) -> None:
    assert pytest_counts(out) == counts


def test_contexts_are_counted_by_process() -> None:
    assert contexts_by_process("12, GPU-a\n12, GPU-b\n13, GPU-a\n[N/A], GPU-a\n\n") == {12.0: 2, 13.0: 1}
