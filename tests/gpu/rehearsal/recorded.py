"""Programs of a check as they would answer on a healthy GPU machine, without starting any.

Each command line is read by the real click command and spec, so that a word that is not theirs fails here. Files of a
run are written by the product's own writers.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec

from bench.case import Case, check, find_spec, parse_options
from bench.cli.main import observatory
from bench.cli.main import run as run_command
from bench.errors import Misuse
from bench.machine.doctor.node_state import gpu_clocks, pcie_links
from bench.machine.doctor.page import GpuFields, Page, Section
from bench.machine.gpus import Gpu
from bench.rank.messages import FailureCause
from bench.results.estimate import Estimate, estimate, estimate_share
from bench.session.default_model import PROBE, default_model
from bench.store.summary import Summary
from collectors.metrics import agent, gpu, results
from collectors.metrics import probes as probes_metrics
from collectors.metrics.metric import Metric, Sample
from collectors.metrics.rank import PHASE_SECONDS, STEP_SECONDS, TRACED_STEP_SECONDS
from collectors.nvml.library import FieldSupport
from collectors.nvml.recorder import save as save_recording
from collectors.sample_log import Mark, NodeLogWriter, Opened, Reading, SampleLog, open_node_log
from collectors.traces.event_names import STEP
from collectors.traces.reading.reader import read_trace
from collectors.traces.timeline import save as save_timeline
from tests.collectors.nvml.nodes import eight_gpus
from tests.gpu.programs import Completed, Programs, Running
from workloads.cost_models.absent import Absent
from workloads.cost_models.shape import DIMENSIONS, PRESETS
from workloads.probes.spec import KINDS, chosen_collectives, counted_sizes, size_bytes, sizes
from workloads.spec import ELEMENT_BYTES

GPU_NAME = "NVIDIA H200"
GPUS = 8
STEP_S = 0.1
PEAK_BYTES = 20 * 2**30
URL = "http://127.0.0.1:9464/metrics"
FAULTS = {"kill": "killed", "raise": "error", "hang": "hung", "leave": "left"}

Change = Callable[[Completed], Completed]
"""Changes a program's answer, to see what a check makes of it."""


class RecordedRunning(Running):
    """A server or run that has said its first line."""

    def __init__(self) -> None: ...
    def first_line(self) -> str:
        return f"serving {URL}"

    def stop(self) -> None: ...


class RecordedPrograms(Programs):
    """See the module. change: of each answer."""

    def __init__(self, folder: Path, change: Change = lambda completed: completed) -> None:
        self.programs: list[tuple[str, ...]] = []
        self._folder = folder
        self._change = change

    def run(self, *programs: tuple[str, ...]) -> list[Completed]:
        return [self._answer(words) for words in programs]

    def start(self, words: tuple[str, ...]) -> Running:
        self._answer(words)
        return RecordedRunning()

    def get(self, url: str) -> str:
        assert url == URL
        return f"{agent.AGENT_CPU_SECONDS.name} 1.25\n"

    def _answer(self, words: tuple[str, ...]) -> Completed:
        self.programs.append(words)
        match words:
            case ("observatory", *rest):
                code, out, err = _observed(rest, self._folder)
            case ("script", name, *_):
                code, out, err = 0, json.dumps(SCRIPTS[name]), ""
            case ("nvidia-smi", *rest):
                code, out, err = 0, _smi(rest), ""
            case ("pytest", *_):
                code, out, err = 0, "............   [100%]\n12 passed, 3 deselected in 14.21s\n", ""
            case ("sleep", _):
                code, out, err = 0, "", ""
            case _:
                raise AssertionError(f"no check may start {words[0]}")
        return self._change(Completed(words=words, code=code, out=out, err=err, elapsed_s=9.0))


SCRIPTS: dict[str, dict[str, Any]] = {
    "selfring": {
        "backend": "nccl",
        "titles": ["nccl:all_gather_into_tensor_coalesced", "nccl:all_reduce", "nccl:reduce_scatter_tensor_coalesced"],
        "messages": 4,
        "entered": ["all_gather", "all_reduce", "reduce_scatter"],
        "kernels": [{"name": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "words": {}}],
        "is_message_whole": True,
    },
    "plain_training": {"step_s": STEP_S, "peak_bytes": PEAK_BYTES, "kernel_s": 2e-4},
    "leaving": {"gone_s": 0.9, "free_s": 1.2, "held_bytes": 33 << 30},
    "messages": {"sent_bytes": 20 << 30, "counted_bytes": {"sent": 20.4 * 2**30, "received": 20.4 * 2**30}},
}


def dry_context(words: Sequence[str]) -> click.Context:
    """The context that the real command would run in.

    Raises:
        click.UsageError: the command does not know one of the words.
    """
    command: click.Command = observatory
    name, rest, context = "observatory", list(words), None
    while isinstance(command, click.Group):
        context = click.Context(command, parent=context, info_name=name)
        name, *rest = rest
        found = command.get_command(context, name)
        assert found is not None, f"observatory has no command {name}"
        command = found
    return command.make_context(name, rest, parent=context)


def _observed(words: Sequence[str], folder: Path) -> tuple[int, str, str]:
    context = dry_context(words)
    match words[0]:
        case "run":
            return _ran(context.params, folder)
        case "analyse":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                code = run_command(words)
            return code, out.getvalue(), ""
        case "doctor":
            return _doctor(context.params)
        case "serve":
            return 0, "", f"serving {URL}\n"
    raise AssertionError(f"no check may run observatory {words[0]}")


def _ran(said: Mapping[str, Any], folder: Path) -> tuple[int, str, str]:
    try:
        case = case_of(said)
    except Misuse as error:
        return 2, "", f"observatory: {error}\n"
    cause = None
    if said["fault_text"] is not None:
        fault, _, place = said["fault_text"].partition("@")
        rank = int(place.partition(":")[0])
        cause = FailureCause(kind=FAULTS[fault], rank=rank, step=7, text=f"rank {rank} ...")  # type: ignore[arg-type]
    run = Path(folder, "runs", f"{len(list(Path(folder, 'runs').glob('*')))}-{case.strategy}")
    _write_folder(run, case, said)
    summary = Summary(
        run=run.name,
        case=case,
        hardware=f"{case.ranks} x {GPU_NAME}",
        commit="abc",
        torch_version="2.11.0+cu130",
        started_ns=1,
        ended_ns=2,
        outcome="failed" if cause is not None else "done",
        cause=cause,
        trials_done=case.trials,
        estimates=() if cause is not None else tuple(_estimates(case)),
        scaling=(),
        effective_batch={},
        step_spread_ratio=0.01,
        notes=(),
        folder=str(run),
    )
    return 0 if cause is None else 3, json.dumps([msgspec.to_builtins(summary)], indent=2), ""


def case_of(said: Mapping[str, Any]) -> Case:
    """The case of these words on eight GPUs.

    Raises:
        Misuse: the spec or the case refuses them.
    """
    spec = find_spec(said["strategy"])
    h200 = Gpu(index=0, name="NVIDIA H200", uuid="GPU-0", memory_bytes=141 * 2**30)
    default = PROBE if spec.kind == "probe" else default_model(said["device"], (h200,))
    dimensions = {name: said[name] for name in DIMENSIONS if said[name] is not None}
    case = check(
        Case(
            strategy=spec.name,
            version=spec.version,
            ranks=(said["ranks"] or (spec.needs.minimum_ranks,))[0],
            model=None
            if spec.kind == "probe"
            else replace(PRESETS[said["shape_name"] or default.shape_name], **dimensions),
            device=said["device"],
            backend=said["backend"] or ("nccl" if said["device"] == "cuda" else "gloo"),
            precision=said["precision"] or default.precision,
            threads=said["threads"],
            trials=said["trials"],
            steps=said["steps"],
            warm_up=said["warm_up"],
            trace_steps=0 if spec.kind == "probe" else said["trace_steps"],
            seed=said["seed"],
            options=parse_options(spec, said["options"]),
        )
    )
    if case.backend == "nccl" and case.ranks > GPUS:
        raise Misuse(f"ranks is {case.ranks}, and there are {GPUS} GPUs")
    return case


def _estimates(case: Case) -> list[Estimate]:
    if case.model is None:
        return _probed(case)
    replayed = case.options["compile"] != "none"
    step_s = STEP_S * (0.8 if replayed else 4 / 3 if case.options["checkpoint"] == "full" else 1)
    peak_bytes = PEAK_BYTES * (0.5 if case.options["checkpoint"] != "none" else 1)
    found = [
        estimate(results.RUN_STEP_SECONDS, [step_s]),
        estimate(results.RUN_MEAN_STEP_SECONDS, [step_s]),
        estimate(results.RUN_FLOPS, [4e14]),
        estimate(results.RUN_MFU, [0.4]),
        *(estimate(results.RUN_PHASE_SECONDS, [step_s / 4], phase=phase) for phase in ("data", "forward", "backward")),
        estimate(results.RUN_PEAK_MEMORY_BYTES, [peak_bytes], account="allocator"),
        estimate_share(results.RUN_OBSERVER_RATIO, [0.004]),
        estimate(results.RUN_LOSS, [6.1]),
    ]
    if case.trace_steps:
        shares = {"compute": 0.9, "idle": 0.1, "exposed_copy": 0.0}
        found += [estimate_share(results.RUN_TRACED_RATIO, [share], part=part) for part, share in shares.items()]
        found += [
            estimate(results.RUN_PAYLOAD_BYTES, [1e6], collective="all_reduce", axis="data", account=account)
            for account in ("expected", "counted")
        ]
    if case.ranks > 1:
        found.append(estimate_share(results.RUN_OVERLAP_RATIO, [0.7]))
        found.append(estimate_share(results.RUN_WAITING_RATIO, [0.1]))
    if case.spec().pipeline(case) is not None:
        found.append(estimate_share(results.RUN_BUBBLE_RATIO, [0.12], account="measured"))
        found.append(estimate_share(results.RUN_BUBBLE_RATIO, [0.11], account="expected"))
    return found


def _probed(case: Case) -> list[Estimate]:
    match case.strategy:
        case "matmul":
            flops = 680e12 if case.precision == "bf16" else 52e12
            return [
                estimate(probes_metrics.RUN_MATMUL_FLOPS, [flops], m=str(size), n=str(size), k=str(size))
                for size in sizes(case)
            ]
        case "copies":
            rates = {"device_copy": 4.2e12, "host_to_device": 54e9, "device_to_host": 52e9}
            return [
                estimate(
                    probes_metrics.RUN_COPY_BANDWIDTH, [rates.get(kind, 1e10)], kind=kind, size=str(size_bytes(case))
                )
                for kind in KINDS[case.device]
            ]
        case "collectives":
            return [
                estimate(
                    probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH,
                    [360e9],
                    collective=collective,
                    algorithm="library",
                    size=str(counts.size * ELEMENT_BYTES[case.precision]),
                )
                for collective in chosen_collectives(case)
                for counts in counted_sizes(case, collective)
            ]
    raise AssertionError(f"no check may run {case.strategy}")


def _write_folder(folder: Path, case: Case, said: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True)
    for rank in range(case.ranks):
        (folder / f"rank{rank}.err").write_text("NCCL INFO NET/Socket : Using [0]lo:127.0.0.1<0>\n")
        log = SampleLog(folder / f"rank{rank}.jsonl")
        log.write(Opened(run=folder.name, trial=0, rank=rank, time_ns=1, pid=1, host="node"))
        for number, (mark, samples) in enumerate(_readings(case, said["trace_every"])):
            log.write(Reading(trial=0, time_ns=1, mark=mark, step=number, samples=samples))
        log.close()
        trace = folder / f"rank{rank}.trace.json"
        trace.write_text(json.dumps(_a_trace(rank)))
        save_timeline(read_trace(trace, rank=rank), folder / f"rank{rank}.timeline.npz")
        (folder / f"rank{rank}.trace.json.gz").write_bytes(trace.read_bytes())
    node = open_node_log(folder / "node0.jsonl", run=folder.name, node=0)
    NodeLogWriter(node).write([gpu.GPU_MEMORY_USED_BYTES.at(1e9, gpu="0")], time_ns=5)
    node.close()


def _readings(case: Case, trace_every: int | None) -> list[tuple[Mark, list[Sample]]]:
    measured: tuple[Mark, list[Sample]] = (
        "measured",
        [STEP_SECONDS.at(STEP_S), *(PHASE_SECONDS.at(STEP_S / 3, phase=phase) for phase in ("data", "forward"))],
    )
    traced: tuple[Mark, list[Sample]] = ("traced", [TRACED_STEP_SECONDS.at(STEP_S * 1.04)])
    every = trace_every or case.steps
    found = []
    for _ in range(0, case.steps, every):
        found += [measured] * every + [traced] * case.trace_steps
    return found


def _a_trace(rank: int) -> dict[str, Any]:
    """Three steps of a GPU, with a compiled kernel and an all_reduce in each, as kineto writes them."""
    events: list[dict[str, Any]] = []
    for step in range(3):
        begun_us = 1000.0 + 300 * step
        known = {"ph": "X", "pid": 1, "tid": 1}
        events.append({**known, "cat": "user_annotation", "name": STEP, "ts": begun_us, "dur": 250.0, "args": {}})
        for stream, name, after_us, dur_us in (
            (7, "triton_poi_fused_add_0", 10.125, 200.0),
            # All ranks begin together, and each ends a little later than the rank before.
            (8, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 215.0, 20 + 0.25 * rank),
        ):
            args: dict[str, Any] = {"correlation": 10 * step + stream}
            launch = {**known, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": begun_us, "dur": 5.0}
            events.append({**launch, "args": args})
            args |= {"device": 0, "stream": stream}
            if stream == 8:
                call = {"Collective name": "allreduce", "Process Group Name": "0", "Group size": GPUS, "Seq": step}
                args |= {**call, "dtype": "Float", "In msg nelems": 8, "Out msg nelems": 8}
            kernel = {"ph": "X", "pid": 0, "tid": stream, "cat": "kernel", "name": name}
            events.append({**kernel, "ts": begun_us + after_us, "dur": dur_us, "args": args})
    return {"schemaVersion": 1, "distributedInfo": {"rank": rank}, "traceEvents": events}


class RecordedNvml:
    """The answers of one GPU to what the doctor asks of its clocks and link."""

    NVMLError = RuntimeError
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2

    def nvmlInit(self) -> None: ...  # noqa: N802  # NVML's own names.
    def nvmlShutdown(self) -> None: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle}"

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> int:  # noqa: N802
        return 1755

    def nvmlDeviceGetMaxClockInfo(self, handle: int, clock: int) -> int:  # noqa: N802
        return 1980

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: int) -> int:  # noqa: N802
        return 5

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: int) -> int:  # noqa: N802
        return 16

    nvmlDeviceGetMaxPcieLinkGeneration = nvmlDeviceGetCurrPcieLinkGeneration  # noqa: N815
    nvmlDeviceGetMaxPcieLinkWidth = nvmlDeviceGetCurrPcieLinkWidth  # noqa: N815


def _doctor(said: Mapping[str, Any]) -> tuple[int, str, str]:
    if said["recording"] is not None:
        save_recording(eight_gpus(), said["recording"])
        return 0, "", ""
    nvml: Any = RecordedNvml()
    gpus = (Gpu(index=0, name=GPU_NAME, uuid="GPU-0", memory_bytes=141 << 30),)
    sections = (
        Section(title="topology", entries=pcie_links(nvml, gpus)),
        Section(title="clocks", entries=gpu_clocks(nvml, gpus)),
    )
    standings = (
        FieldSupport(gpu="0", question="power sensor", answer="answers", cost_s=2e-5),
        FieldSupport(gpu="0", question="GPM", answer="not permitted", reason="Insufficient Permissions"),
    )
    absent = Absent(reason="nothing was run")
    page = Page(
        hostname="node",
        sections=sections,
        fields=GpuFields(standings=standings, left_out=()),
        ceilings=absent,
        comparison=absent,
    )
    return 0, json.dumps(msgspec.to_builtins(page), indent=2), ""


def _smi(words: Sequence[str]) -> str:
    joined = " ".join(words)
    if "--query-compute-apps" in joined:
        return "4711, GPU-0\n4712, GPU-1\n"
    if "memory.used" in joined:
        return "3\n"
    if "-x" in words:
        return (
            "<?xml version='1.0'?><nvidia_smi_log><gpu id='0'><clocks><sm_clock>1740 MHz</sm_clock></clocks>"
            "<pci><pci_gpu_link_info><pcie_gen><current_link_gen>5</current_link_gen></pcie_gen></pci_gpu_link_info>"
            "</pci></gpu></nvidia_smi_log>"
        )
    assert words == ["-q"]
    return "==============NVSMI LOG==============\n"


def with_json(name: str, **changes: Any) -> Change:
    """Of the script of that name: these values in place of its own."""

    def change(completed: Completed) -> Completed:
        if completed.words[:2] != ("script", name):
            return completed
        return replace(completed, out=json.dumps({**json.loads(completed.out), **changes}))

    return change


def with_estimate(metric: Metric, value: float, **labels: str) -> Change:
    """Of each run: this value of the metric, where it has these labels."""

    def change(completed: Completed) -> Completed:
        if completed.words[:2] != ("observatory", "run") or not completed.out:
            return completed
        summaries = json.loads(completed.out)
        for one in summaries[0]["estimates"] if isinstance(summaries, list) else ():
            if one["metric"] == metric.name and labels.items() <= one["labels"].items():
                one["median"] = value
        return replace(completed, out=json.dumps(summaries))

    return change
