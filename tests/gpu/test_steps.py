"""How steps are watched: windows of the profiler, an agent that asks NVML, and what NVML answers meanwhile."""

from __future__ import annotations

import re
import time
from itertools import groupby
from statistics import median
from xml.etree import ElementTree

import pytest

from collectors.metrics import results
from collectors.metrics.agent import AGENT_CPU_SECONDS
from collectors.metrics.rank import STEP_SECONDS, TRACED_STEP_SECONDS
from collectors.nvml.recorder import load as load_recording
from tests.gpu.readings import RunReader, json_of, nvidia_smi, run, sample, scraped
from tests.gpu.session import Session

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(60)]

PROMISED_CHANGE = 0.01
"""Of the median step, while an agent polls NVML. Source: docs/measured/costs.md."""
FAILS = "not always"
"""The doctor's word for a question that NVML answers at times only."""
START_S = 15.0
"""After which a run on a GPU has begun to compute."""


def test_windows(gpu: Session) -> None:
    """Windows between measured steps: what the first costs, and whether later steps are as fast as before."""
    size = ("--steps", "6", "--trace-every", "2") if gpu.is_rehearsal else ("--steps", "20", "--trace-every", "5")
    single = run(gpu, "single", *gpu.shape("125m", 8), "--precision", gpu.half, *size, "--trace-steps", "3")
    stretches = stretches_of_steps(single)
    measured = [times_s for mark, times_s in stretches if mark == "measured"]
    traced = [times_s for mark, times_s in stretches if mark == "traced"]
    before_s, after_s = median(measured[0]), median(step_s for stretch in measured[1:] for step_s in stretch)
    source = "a window ends with itself; 2 % for clocks"
    gpu.within("steps after windows / before", after_s / before_s, high=1.02, source=source)
    gpu.figure("first traced step / the window's others", traced[0][0] / median(traced[0][1:] or traced[0]))
    gpu.figure("traced step / measured step", median(traced[-1]) / before_s, compare="a window may cost 5 %")


def stretches_of_steps(single: RunReader) -> list[tuple[str, list[float]]]:
    """Return stretches of steps of one mark, in the order in which rank 0 ran them, with each step's seconds."""
    metrics = {"measured": STEP_SECONDS, "traced": TRACED_STEP_SECONDS}
    return [
        (mark, [sample(step.samples, metrics[mark]) for step in stretch])
        for mark, stretch in groupby(single.readings("measured", "traced"), key=lambda step: str(step.mark))
    ]


def test_polling(gpu: Session) -> None:
    """Steps with and without an agent that asks NVML ten times a second: NVML's lock is the driver's."""
    words = ("--precision", gpu.half, "--steps", gpu.count(20), "--trace-steps", "0")

    def step_s() -> float:
        return run(gpu, "single", *gpu.shape("125m", 8), *words).value(results.RUN_STEP_SECONDS)

    before_s = step_s()
    with gpu.during(gpu.server("--beat", "0.1")) as agent:
        url = agent.first_line().removeprefix("serving ").strip()
        polled_s = step_s()
        ((_, cpu_s),) = scraped(gpu.programs.get(url), AGENT_CPU_SECONDS)
    after_s = step_s()
    noise = abs(after_s / before_s - 1)
    gpu.within(
        "polled step / others, less 1",
        polled_s / median((before_s, after_s)) - 1,
        high=PROMISED_CHANGE + noise,
        source=f"the promise of {PROMISED_CHANGE:g}, and {noise:.2g} by which the two others differ",
    )
    gpu.figure("agent's CPU since its start", cpu_s, "s")


def test_doctor(gpu: Session) -> None:
    """The doctor's page and a recording while the GPU works, compared with nvidia-smi at that time."""
    words = ("fp32", "256") if gpu.is_rehearsal else ("bf16", "8192")
    size = ("--precision", words[0], "--option", f"max_size={words[1]}", "--steps", gpu.count(1000))
    page = ("observatory", "doctor", "--store", gpu.store, "--format", "json")
    file = gpu.folder / "node.json"
    with gpu.during(gpu.observed("matmul", *size)):
        if not gpu.is_rehearsal:
            time.sleep(START_S)
        (paged,) = gpu.programs.run(page)
        smi = "" if gpu.is_rehearsal else nvidia_smi(gpu, "-q", "-x")
        (recorded,) = gpu.programs.run(("observatory", "doctor", "--record", str(file), "--seconds", "3"))
    document = json_of(paged)
    sections = {section["title"]: section["entries"] for section in document["sections"]}
    gpu.figure("sections of the page", ", ".join(sections))
    standings = document["fields"]["standings"]
    answers = [field for field in standings if field["answer"] == "answers"]
    gpu.figure("fields that answer", f"{len(answers)} of {len(standings)}")
    unsure = ", ".join(sorted({field["question"] for field in standings if field["answer"] == FAILS})) or "none"
    source = "a field answers or says no"
    gpu.holds("fields that fail at times", unsure == "none", seen=unsure, expected="none", source=source)
    if gpu.is_rehearsal:
        return
    _compare_with_smi(gpu, sections, smi)
    slowest = sorted(answers, key=lambda field: field["cost_s"] or 0.0)[-3:]
    costs = [f"{field['question']} {1e6 * (field['cost_s'] or 0):.0f} us" for field in slowest]
    gpu.figure("slowest fields", ", ".join(costs))
    for question in ("GPM", "energy counter"):
        states = {field["answer"] for field in standings if question.lower() in field["question"].lower()}
        gpu.figure(question, ", ".join(sorted(states)) or "was not asked")
    assert recorded.code == 0, str(recorded)
    gpu.within("GPUs in the recording", len(load_recording(file).gpus), low=1, source="the GPUs that NVML shows")


def _compare_with_smi(gpu: Session, sections: dict[str, list[dict[str, object]]], smi: str) -> None:
    entries = {str(entry["name"]): entry["value"] for title in ("clocks", "topology") for entry in sections[title]}
    element = ElementTree.fromstring(smi).find("gpu")
    assert element is not None, "nvidia-smi -q -x shows no GPU"
    clock = re.match(r"\d+", element.findtext("clocks/sm_clock") or "")
    clock_hz = entries.get("GPU 0, SM clock now")
    if isinstance(clock_hz, int) and clock is not None:
        source = "read seconds apart under load"
        gpu.within("SM clock, doctor / nvidia-smi", clock_hz / 1e6 / int(clock[0]), low=0.8, high=1.25, source=source)
    generation = element.findtext("pci/pci_gpu_link_info/pcie_gen/current_link_gen")
    link = entries.get("GPU 0, PCIe")
    if generation is not None and link is not None:
        expected = f"generation {generation}"
        is_equal = f"{expected} " in f"{link} "
        gpu.holds("PCIe", is_equal, seen=str(link), expected=expected, source="nvidia-smi -q -x")
