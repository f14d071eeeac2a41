"""Checks of what NVML tells: the doctor's page, a recording, and /metrics beside nvidia-smi while the GPU works."""

from __future__ import annotations

import time
from collections.abc import Iterator

from collectors.metrics.agent import AGENT_CPU_SECONDS
from collectors.metrics.gpu import GPU_CLOCK_HERTZ, GPU_MEMORY_USED_BYTES, GPU_POWER_WATTS, RANK_GPU
from collectors.metrics.metric import Metric
from collectors.nvml.recorder import load as load_recording
from tests.gpu.check import Finding, figure, holds, within
from tests.gpu.checks.steps import server
from tests.gpu.checks.traffic import counted_as_expected
from tests.gpu.readings import Unreadable, last_lines, nvidia_smi, ran, scraped, smi_numbers, smi_tree, told
from tests.gpu.session import Program, Session

SCRAPE_CPU_S = 0.010
"""Of a node's exporter. Source: what this project holds itself to, for 8 GPUs and 8 ranks."""
SCRAPES = 20
FAILS = "not always"
"""What a Standing says of a question that answers at times only."""
MI_B = 1 << 20


def doctor(session: Session) -> Iterator[Finding]:
    """The doctor's page and a recording while the GPU works, beside nvidia-smi at that time."""
    seconds, size = ("2", "256") if session.is_rehearsal else ("20", "8192")
    page = Program(("observatory", "doctor", "--store", session.store, "--format", "json"))
    with session.beside(session.script("load", "--seconds", seconds, "--size", size)) as load:
        load.first_line()
        (paged,) = session.commands.run(page)
        tree = [] if session.is_rehearsal else list(smi_tree(nvidia_smi(session.commands, "-q", "-x")))
        file = session.folder / "node.json"
        (recorded,) = session.commands.run(Program(("observatory", "doctor", "--record", str(file), "--seconds", "3")))
    found = told(paged)
    titles = {section["title"]: section["entries"] for section in found["sections"]}
    yield figure("sections of the page", ", ".join(titles))
    standings = found["fields"]["standings"]
    answers = [one for one in standings if one["answer"] == "answers"]
    yield figure("fields that answer", f"{len(answers)} of {len(standings)}")
    unsure = sorted({one["question"] for one in standings if one["answer"] == FAILS})
    yield holds(
        "fields that fail at times",
        not unsure,
        seen=", ".join(unsure) or "none",
        expected="none",
        source="a field answers or says no",
    )
    if session.is_rehearsal:
        return
    yield from _beside_smi(titles, tree[0])
    slowest = sorted(answers, key=lambda one: one["cost_s"] or 0.0)[-3:]
    yield figure(
        "dearest fields", ", ".join(f"{one['question']} {1e6 * (one['cost_s'] or 0):.0f} us" for one in slowest)
    )
    for question in ("GPM", "energy counter"):
        said = [one["answer"] for one in standings if question.lower() in one["question"].lower()]
        yield figure(question, ", ".join(sorted(set(said))) or "was not asked")
    if recorded.code != 0:
        raise Unreadable(f"doctor --record ended with code {recorded.code}: {last_lines(recorded)}")
    yield within("GPUs in the recording", len(load_recording(file).gpus), low=1, source="those that NVML shows")


def _beside_smi(titles: dict[str, list[dict[str, object]]], gpu: object) -> Iterator[Finding]:
    clocks = {str(entry["name"]): entry["value"] for entry in titles["clocks"]}
    now_hz = clocks.get("GPU 0, SM clock now")
    smi_mhz = _first_number(gpu, "clocks/sm_clock")
    if isinstance(now_hz, int) and smi_mhz is not None:
        yield within(
            "SM clock, doctor / nvidia-smi",
            now_hz / 1e6 / smi_mhz,
            low=0.8,
            high=1.25,
            source="read seconds apart under load",
        )
    links = {str(entry["name"]): entry["value"] for entry in titles["topology"]}
    generation = _first_number(gpu, "pci/pci_gpu_link_info/pcie_gen/current_link_gen")
    said = links.get("GPU 0, PCIe")
    if generation is not None and said is not None:
        yield holds(
            "PCIe",
            f"generation {generation:.0f} " in f"{said} ",
            seen=str(said),
            expected=f"generation {generation:.0f}",
            source="nvidia-smi -q -x",
        )


def _first_number(gpu: object, path: str) -> float | None:
    text = gpu.findtext(path) if hasattr(gpu, "findtext") else None
    try:
        return float((text or "").split()[0])
    except (ValueError, IndexError):
        return None


def serving(session: Session) -> Iterator[Finding]:
    """/metrics during a run: ranks on their GPU, gauges beside nvidia-smi, and what a scrape costs."""
    steps = session.count(400)
    program = session.observed("single", *session.shape("125m", 8), "--precision", session.half, "--steps", steps)
    with session.beside(server(session)) as agent:
        url = agent.first_line().removeprefix("serving ").strip()
        with session.beside(program) as running:
            placed, page = _page_with_rank(session, url)
            smi = [] if session.is_rehearsal else smi_numbers(nvidia_smi(session.commands, *_QUERY))
            begun = _cpu_s(page)
            for _ in range(SCRAPES):
                page = session.commands.get(url)
            scrape_s = (_cpu_s(page) - begun) / SCRAPES
            done = running.stop() if session.is_rehearsal else None
    yield figure(
        "ranks on GPUs", f"{len(placed)} series: {', '.join(sorted({one['gpu'] for one in placed})) or 'none'}"
    )
    yield within(
        "CPU of a scrape", scrape_s, high=SCRAPE_CPU_S, unit="s", source="the promise; polling between is in it"
    )
    if session.is_rehearsal:
        assert done is not None
        return
    yield holds(
        "rank is joined to its GPU", bool(placed), seen=f"{len(placed)} series", expected="1", source=RANK_GPU.name
    )
    watts, used_mib, sm_mhz = smi[0]
    yield from _compared(page, GPU_MEMORY_USED_BYTES, used_mib, MI_B, 0.05, "a context's worth")
    yield from _compared(page, GPU_POWER_WATTS, watts, 1, 0.3, "averages of different moments")
    yield from _compared(page, GPU_CLOCK_HERTZ.alone(clock="sm"), sm_mhz, 1e6, 0.25, "clocks move")


_QUERY = ("--query-gpu=power.draw,memory.used,clocks.sm", "--format=csv,noheader,nounits", "--id=0")
_TRIES = 60


def _page_with_rank(session: Session, url: str) -> tuple[list[dict[str, str]], str]:
    """Scrape each half second until a rank is shown on a GPU, or the rank should long be there."""
    page = ""
    for _ in range(2 if session.is_rehearsal else _TRIES):
        page = session.commands.get(url)
        placed = [labels for labels, _ in scraped(page, RANK_GPU)]
        if placed:
            return placed, page
        time.sleep(0.5)
    return [], page


def _compared(page: str, metric: Metric, smi: float | None, scale: float, share: float, why: str) -> Iterator[Finding]:
    ours = [value for found, value in scraped(page, metric) if found["gpu"] == "0"]
    if not ours or smi is None:
        yield figure(metric.name, "absent" if not ours else f"{ours[0]:.4g}", beside=f"nvidia-smi: {smi}")
        return
    yield within(
        f"{metric.name} / nvidia-smi",
        ours[0] / (smi * scale),
        low=1 - share,
        high=1 + share,
        source=f"nvidia-smi at that second; {why}",
    )


def _cpu_s(page: str) -> float:
    found = scraped(page, AGENT_CPU_SECONDS)
    if not found:
        raise Unreadable(f"/metrics has no {AGENT_CPU_SECONDS.name}")
    return found[0][1]


def cpu_ranks(session: Session) -> Iterator[Finding]:
    """Ranks on the CPU of a GPU machine: torch's device mesh makes groups otherwise there."""
    words = ("--ranks", "2", "--device", "cpu", "--steps", "5", "--trace-steps", "2")
    (done,) = session.commands.run(session.observed("ddp", *words))
    run = ran(done)
    yield from counted_as_expected("ddp on 2 CPU ranks", run)
