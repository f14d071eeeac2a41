"""Every check on recorded answers of a healthy machine, and on one answer that is wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from collectors.metrics import probes, results
from tests.gpu import test_first, test_several, test_speed, test_steps
from tests.gpu.programs import Completed
from tests.gpu.readings import Unreadable
from tests.gpu.rehearsal.recorded import Change, RecordedPrograms, dry_context, with_estimate, with_json
from tests.gpu.session import Finding, Session
from workloads.spec import Device

EARLIER = {"training": {"step_ms": 100.0}}
WITHOUT_RECORDING = ("versions", "fork")
"""They read this machine and start an agent: both are real on every machine."""


def _checks() -> Iterator[tuple[str, Callable[..., None], dict[str, Any]]]:
    """Yield each check by name and parameters, with those parameters; pytest's marks say which there are."""
    for module in (test_first, test_speed, test_steps, test_several):
        for name, check in vars(module).items():
            if name.startswith("test_") and check.__module__ == module.__name__:
                marks = [mark for mark in getattr(check, "pytestmark", []) if mark.name == "parametrize"]
                axes = [
                    [(mark.args[0], getattr(value, "values", [value])[0]) for value in mark.args[1]] for mark in marks
                ]
                for chosen in itertools.product(*axes):
                    words = [name.removeprefix("test_"), *(str(value) for _, value in chosen)]
                    yield "-".join(words), check, dict(chosen)


CHECKS = {name: (check, chosen) for name, check, chosen in _checks() if name not in WITHOUT_RECORDING}


def _findings(
    name: str,
    folder: Path,
    change: Change = lambda completed: completed,
    *,
    device: Device = "cuda",
    earlier: Mapping[str, Mapping[str, float]] = EARLIER,
) -> list[Finding]:
    programs = RecordedPrograms(folder, change)
    session = Session(folder=folder, device=device, programs=programs, earlier=lambda check: earlier.get(check, {}))
    check, chosen = CHECKS[name]
    check(session, **chosen)
    assert device == "cuda" or not any({"cuda", "nvidia-smi"} & set(words) for words in programs.programs)
    return session.findings


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_steps, "START_S", 0.0)


@pytest.mark.parametrize("name", CHECKS)
def test_nothing_is_off_on_a_healthy_machine(name: str, tmp_path: Path) -> None:
    findings = _findings(name, tmp_path)
    assert [row for row in findings if row.verdict == "off"] == []
    assert findings
    assert all(row.verdict == "seen" or (row.expected and row.source) for row in findings)


@pytest.mark.parametrize("name", CHECKS)
def test_a_rehearsal_uses_real_words_and_names_no_gpu(name: str, tmp_path: Path) -> None:
    assert [row for row in _findings(name, tmp_path, device="cpu") if row.verdict == "off"] == []


def _code(code: int, *words: str) -> Change:
    """Programs with these words end with another code."""
    return lambda completed: replace(completed, code=code) if set(words) <= set(completed.words) else completed


def _text(old: str, new: str, *words: str) -> Change:
    """Programs with these words print something else."""

    def change(completed: Completed) -> Completed:
        if not set(words) <= set(completed.words):
            return completed
        assert old in completed.out
        return replace(completed, out=completed.out.replace(old, new))

    return change


WRONG: list[tuple[str, Change, str]] = [
    ("selfring", with_json("selfring", entered=["all_gather_into_tensor_coalesced"]), "collectives by our reader"),
    ("selfring", with_json("selfring", messages=0), "messages in the Flight Record"),
    ("window", with_json("plain_training", kernel_s=1e-4), "kernels of a step, ours / plain profile's"),
    ("marked_tests-workloads", _code(1, "pytest"), "tests"),
    ("matmul-bf16", with_estimate(probes.RUN_MATMUL_FLOPS, 1.2e15), "largest product / data sheet"),
    ("matmul-fp32", with_estimate(probes.RUN_MATMUL_FLOPS, 210e12), "largest product / data sheet"),
    ("copies", with_estimate(probes.RUN_COPY_BANDWIDTH, 5e12, kind="device_copy"), "device_copy / data sheet"),
    ("copies", with_estimate(probes.RUN_COPY_BANDWIDTH, 80e9, kind="host_to_device"), "host_to_device"),
    ("training", with_json("plain_training", step_s=0.09), "our step rate / the plain loop's"),
    ("training", with_json("plain_training", peak_bytes=2**30), "our peak / the plain loop's"),
    ("training", with_estimate(results.RUN_OBSERVER_RATIO, 0.02), "observer's share"),
    ("option-compile=default", with_estimate(results.RUN_STEP_SECONDS, 0.2), "times the eager step"),
    ("option-compile=default", with_estimate(results.RUN_TRACED_RATIO, 0.9, part="idle"), "sum of a step's parts"),
    ("leaving", with_json("leaving", free_s=None), "memory free after"),
    ("faults-kill", _text('"rank": 0', '"rank": null', "kill@0:7"), "blamed"),
    ("faults-hang", _code(0, "hang@0:7"), "blamed"),
    ("doctor", _text("1755000000", "300000000", "doctor", "--format"), "SM clock, doctor / nvidia-smi"),
    ("doctor", _text("generation 5", "generation 1", "doctor", "--format"), "PCIe"),
    ("doctor", _text("not permitted", "not always", "doctor", "--format"), "fields that fail at times"),
    ("bus_bandwidth-8", with_estimate(probes.RUN_COLLECTIVE_BUS_BANDWIDTH, 90e9), "all_gather of 1024 MiB"),
    ("bus_bandwidth-8", with_estimate(probes.RUN_COLLECTIVE_BUS_BANDWIDTH, 600e9), "all_reduce of 1024 MiB"),
    ("overlap-fsdp-2", with_estimate(results.RUN_OVERLAP_RATIO, 0.0), "overlap / communication"),
    ("bubble-8", with_estimate(results.RUN_BUBBLE_RATIO, 0.4, account="measured"), "measured less expected"),
    ("blame-raise-2", _text('"rank": 1', '"rank": 0', "raise@1:7"), "blamed"),
    ("ending-fsdp-8", _code(3, "fsdp"), "run"),
    ("counters", with_json("messages", counted_bytes={"sent": 20 << 20}), "counted sent / sent"),
    ("strategies-data-2", with_estimate(results.RUN_PAYLOAD_BYTES, 0.0, account="counted"), "ddp: traffic"),
    ("strategies-others-2", _text('"done"', '"timed_out"', "ulysses"), "ulysses"),
]


@pytest.mark.parametrize(("name", "change", "what"), WRONG, ids=[f"{name}-{what}" for name, _, what in WRONG])
def test_what_is_wrong_is_off(name: str, change: Change, what: str, tmp_path: Path) -> None:
    off = [row.what for row in _findings(name, tmp_path, change) if row.verdict == "off"]
    assert any(row.startswith(what) for row in off), off


def test_a_run_that_fails_makes_the_check_fail_with_its_cause(tmp_path: Path) -> None:
    def change(completed: Completed) -> Completed:
        return replace(completed, code=70, out="", err="observatory: this is a bug of ours: KeyError\n")

    with pytest.raises(Unreadable, match="code 70: observatory: this is a bug of ours: KeyError"):
        _findings("single-half", tmp_path, change)


def test_a_machine_without_nvidia_smi_skips_what_needs_it(tmp_path: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match="there is no nvidia-smi here"):
        _findings("doctor", tmp_path, _code(127, "nvidia-smi"))


def test_an_unknown_word_of_a_command_line_fails() -> None:
    with pytest.raises(click.UsageError, match="--stepz"):
        dry_context(["run", "single", "--stepz", "5"])
