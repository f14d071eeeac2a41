"""Made-up cases, machines and summaries, for tests that need some and do not care which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bench.case import Case, Purpose, find_spec, parse_options
from bench.machine.machine import Machine
from bench.results.efficiency import scaling_efficiency
from bench.results.estimate import estimate
from bench.store.summary import Summary
from collectors.metrics.results import RUN_PHASE_SECONDS, RUN_STEP_SECONDS
from workloads.cost_models.shape import Shape
from workloads.spec import OptionValue

TINY = Shape(layers=2, width=16, heads=2, kv_heads=1, mlp_width=32, vocabulary=32, sequence=8, batch=8)
SMALL = replace(TINY, batch=4)


WITH_BUCKETS = ("ddp", "zero1", "ring_attention", "ulysses", "three_d")
WHOLE_MODEL_MB = 25.0
"""A bucket that holds all gradients, so that what a case predicts does not depend on the default for its shape."""


def make_case(strategy: str = "ddp", ranks: int = 2, batch: int = 8, **changes: Any) -> Case:
    """A case of a shape that is too small to matter."""
    spec = find_spec(strategy)
    case = Case(
        strategy=strategy,
        version=spec.version,
        ranks=ranks,
        model=replace(TINY, batch=batch),
        device="cpu",
        backend="gloo",
        precision="fp32",
        threads=1,
        trials=3,
        steps=10,
        warm_up=2,
        trace_steps=0,
        seed=0,
        options=parse_options(spec, [f"bucket_mb={WHOLE_MODEL_MB}"] if strategy in WITH_BUCKETS else ()),
    )
    case = replace(case, **changes)
    return replace(case, options=spec.settled(case)) if spec.kind == "training" else case


def make_probe(strategy: str = "collectives", ranks: int = 2, **changes: Any) -> Case:
    """A case of a probe."""
    return make_case(strategy, ranks, model=None, **changes)


def small_case(
    strategy: str = "ddp", ranks: int = 2, *, options: Mapping[str, OptionValue] | None = None, **changes: Any
) -> Case:
    """A case that is measured in half a second: one trial of few steps. options: in place of the defaults."""
    case = make_case(strategy, ranks, batch=SMALL.batch, trials=1, steps=3, warm_up=1)
    return replace(case, **{"options": {**case.options, **(options or {})}, **changes})


def make_machine() -> Machine:
    """A node without a GPU."""
    return Machine(
        hostname="node0",
        system="Linux",
        kernel="6.1",
        architecture="x86_64",
        python_version="3.11.7",
        own_version="0.1.0",
        commit=None,
        is_dirty=None,
        torch_version="2.13.0",
        torch_cuda_version=None,
        nccl_version=None,
        driver_version=None,
        gpus=(),
        links=(),
        cpu="AMD EPYC",
        usable_cores=2,
        physical_cores=2,
        memory_bytes=1 << 34,
        environment={"OMP_NUM_THREADS": "1"},
        absent={
            "commit": "/opt is no git tree",
            "torch_hip_version": "torch is built without ROCm",
            "cuda_driver_version": "NVML: NVML Shared Library Not Found",
            "container_image": "none of OBSERVATORY_IMAGE, APPTAINER_CONTAINER, SINGULARITY_CONTAINER is set",
            "cpu_limit_cores": "no control group limits CPU time",
            "memory_limit_bytes": "no control group limits memory",
        },
    )


def make_summary(run: str = "run-a", *, started_ns: int = 1_700_000_000_000_000_000, **changes: Any) -> Summary:
    """A run of three trials that ended well."""
    case = make_case()
    summary = Summary(
        run=run,
        case=case,
        hardware="AMD EPYC, 2 cores",
        commit=None,
        torch_version="2.13.0",
        started_ns=started_ns,
        ended_ns=started_ns + 9_000_000_000,
        outcome="done",
        cause=None,
        trials_done=3,
        estimates=(
            estimate(RUN_STEP_SECONDS, (0.010, 0.011, 0.012)),
            estimate(RUN_PHASE_SECONDS, (0.004, 0.005, 0.004), phase="forward"),
        ),
        scaling=(
            scaling_efficiency(case, (90.0, 92.0, 91.0), make_case("single", 1, 4), (50.0, 51.0), baseline_run="run-0"),
        ),
        effective_batch={"local": 4, "data_ranks": 2, "accumulate": 1, "total": 8},
        peak=None,
        step_spread_ratio=0.05,
        notes=("MFU is absent: the peak of a CPU is unknown",),
        purpose=Purpose(origin="nightly"),
        folder=f"/runs/{run}",
    )
    return replace(summary, **changes)
