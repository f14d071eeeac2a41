"""What NVML answers: the doctor's page, a recording, and /metrics compared with nvidia-smi while the GPU works."""

from __future__ import annotations

import re
import time
from xml.etree import ElementTree

import pytest

from collectors.metrics.agent import AGENT_CPU_SECONDS
from collectors.metrics.gpu import GPU_CLOCK_HERTZ, GPU_MEMORY_USED_BYTES, GPU_POWER_WATTS, RANK_GPU
from collectors.nvml.recorder import load as load_recording
from tests.gpu.readings import json_of, nvidia_smi, scraped, smi_numbers
from tests.gpu.session import Session

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(60)]

SCRAPE_CPU_S = 0.010
"""Of a node's exporter. Source: docs/measured/costs.md, for 8 GPUs and 8 ranks."""
SCRAPES = 20
FAILS = "not always"
"""The doctor's word for a question that NVML answers at times only."""
TRIES = 60
START_S = 15.0
"""After which a run on a GPU has begun to compute."""


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


def test_serving(gpu: Session) -> None:
    """/metrics during a run: ranks on their GPU, gauges compared with nvidia-smi, and what a scrape costs."""
    words = ("--precision", gpu.half, "--steps", gpu.count(400))
    with gpu.during(gpu.server()) as agent:
        url = agent.first_line().removeprefix("serving ").strip()
        with gpu.during(gpu.observed("single", *gpu.shape("125m", 8), *words)):
            placed, page = _page_with_rank(gpu, url)
            smi = [] if gpu.is_rehearsal else smi_numbers(gpu, "power.draw,memory.used,clocks.sm")
            before_s = _cpu_s(page)
            for _ in range(SCRAPES):
                page = gpu.programs.get(url)
            scrape_s = (_cpu_s(page) - before_s) / SCRAPES
    source = "the promise; polling between scrapes is included"
    gpu.within("CPU of a scrape", scrape_s, high=SCRAPE_CPU_S, unit="s", source=source)
    if gpu.is_rehearsal:
        return
    seen = f"{len(placed)} series: {', '.join(sorted({labels['gpu'] for labels in placed})) or 'none'}"
    gpu.holds("rank is joined to its GPU", bool(placed), seen=seen, expected="1", source=RANK_GPU.name)
    watts, used_mib, sm_mhz = smi[0]
    for metric, value, share, why in (
        (GPU_MEMORY_USED_BYTES, (used_mib or 0) * 2**20, 0.05, "a context's worth"),
        (GPU_POWER_WATTS, watts, 0.3, "averages of different moments"),
        (GPU_CLOCK_HERTZ.alone(clock="sm"), (sm_mhz or 0) * 1e6, 0.25, "clocks move"),
    ):
        ours = [number for labels, number in scraped(page, metric) if labels["gpu"] == "0"]
        if not ours or not value:
            gpu.figure(metric.name, f"{ours or 'absent'}", compare=f"nvidia-smi: {value or 'no number'}")
            continue
        source = f"nvidia-smi at that second; {why}"
        gpu.within(f"{metric.name} / nvidia-smi", ours[0] / value, low=1 - share, high=1 + share, source=source)


def _page_with_rank(gpu: Session, url: str) -> tuple[list[dict[str, str]], str]:
    """Scrape each half second until the page shows a rank on a GPU, or must have shown it long ago."""
    page = ""
    for _ in range(2 if gpu.is_rehearsal else TRIES):
        page = gpu.programs.get(url)
        placed = [labels for labels, _ in scraped(page, RANK_GPU)]
        if placed:
            return placed, page
        time.sleep(0.5)
    return [], page


def _cpu_s(page: str) -> float:
    ((_, cpu_s),) = scraped(page, AGENT_CPU_SECONDS)
    return cpu_s
