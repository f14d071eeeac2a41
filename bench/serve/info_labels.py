"""Labels of info metrics, which describe cases, runs and results in words."""

from __future__ import annotations

from bench.case import Case, Purpose, options_shown, written
from bench.machine.machine import Machine
from bench.store.summary import Summary
from workloads.cost_models.shape import Shape, nearest_preset


def case_labels(case: Case, hardware: str) -> dict[str, str]:
    """Return the labels of a case that the infos of a run and of a result have in common.

    hardware: what the case ran on. The name of a run on GPUs includes it, because boards choose series by name, and the
    same case on other GPUs is another series.
    """
    return {
        "strategy": case.strategy,
        "ranks": str(case.ranks),
        "device": case.device,
        "shape": "" if case.model is None else _shape_words(case.model),
        "precision": case.precision,
        "name": _name(case, hardware),
    }


def membership(purpose: Purpose) -> dict[str, str]:
    """Return the suite and case to which a run belongs; both empty if it belongs to none."""
    member = purpose.member
    return {"suite": "", "case": ""} if member is None else {"suite": member.suite, "case": member.case}


def option_words(case: Case) -> str:
    """Return the options that are not at their defaults, for example `microbatches=8, balance=measured`; or ""."""
    return ", ".join(f"{name}={written(value)}" for name, value in options_shown(case).items())


def versions(summary: Summary, machine: Machine | None) -> dict[str, str]:
    """Return the versions with which a result was measured; "" if unknown, or if its case does not use the program."""
    has_gpus, has_nccl = summary.case.device == "cuda", summary.case.backend == "nccl"
    return {
        "commit": summary.commit or "",
        "torch": summary.torch_version or "",
        "driver": (machine.driver_version or "") if machine is not None and has_gpus else "",
        "nccl": (machine.nccl_version or "") if machine is not None and has_nccl else "",
        "gpu": summary.hardware if has_gpus else "",
    }


def _name(case: Case, hardware: str) -> str:
    """Return the name from which people choose: "ddp on 2, tiny, fp32, cpu, bucket_mb=1"."""
    where = hardware.replace("NVIDIA ", "") if case.device == "cuda" else case.device  # Legends are narrow.
    if case.watched_name is not None:
        own = (case.title, where, f"torch {case.options.get('torch', 'unknown')}", str(case.options.get("tags", "")))
        return ", ".join(part for part in own if part)
    parts = (case.title, "" if case.model is None else _shape_words(case.model), case.precision, where)
    return ", ".join(part for part in (*parts, option_words(case)) if part)


def _shape_words(shape: Shape) -> str:
    """Return the nearest preset and the differences from it, for example "tiny width=64"."""
    preset, others = nearest_preset(shape)
    return " ".join((preset, *(f"{name}={shape.word(name)}" for name in others)))
