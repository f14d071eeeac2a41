"""`run --dry-run` and `list` on nodes of fake GPUs, with a real libnvidia-ml.so.1 and a torch that claims CUDA."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.nvml.library import fake_node
from tests.support.nvml.scenes import (
    A100,
    B200,
    FORBIDDEN,
    H100,
    LOST,
    MISMATCH,
    RTX,
    Scene,
    as_text,
    mig_uuid,
    node_of,
    split_by_mig,
)

EIGHT = node_of(*[H100] * 8)
DRIVER = """
import contextlib, io, json, os, sys
from pathlib import Path
from typing import Any
from bench.cli.main import run

scene, torch = Path(os.environ["NVML_SCENE"]), Path(sys.argv[1]) / "torch"
for case in json.load(sys.stdin):
    new = scene.with_suffix(".new")
    new.write_text(case["scene"])
    new.replace(scene)
    (torch / "version.py").write_text(f"__version__ = {case['torch']!r}; cuda = {case['cuda']!r}; hip = None\\n")
    os.environ |= case["variables"]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(case["words"])
    for name in case["variables"]:
        del os.environ[name]
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""
"""Runs one command after another in one process, each with a scene, a build of torch and variables of its own."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A command on a node, and what it answers: its code, the first line of its output and a line of its errors."""

    scene: Scene
    words: str = "run ddp --dry-run"
    cuda: str | None = "13.0"
    variables: tuple[tuple[str, str], ...] = ()
    code: int = 0
    out: str = ""
    err: str = ""


CASES = {
    "8 x H100": Case(scene=EIGHT, out="ddp on 8: cuda, nccl", err="device: cuda (8 GPUs)"),
    "8 x B200": Case(scene=node_of(*[B200] * 8), out="ddp on 8: cuda, nccl", err="device: cuda (8 GPUs)"),
    "16 GPUs": Case(
        scene=node_of(*[H100] * 16),
        words="run ddp --batch 16 --dry-run",
        out="ddp on 16: cuda, nccl",
        err="device: cuda (16 GPUs)",
    ),
    "RTX": Case(scene=node_of(RTX, RTX), out="ddp on 2: cuda, nccl", err="device: cuda (2 GPUs)"),
    "list": Case(scene=EIGHT, words="list", out="strategy"),
    "mixed": Case(
        scene=node_of(H100, H100, RTX),
        words="run ddp --batch 9 --dry-run",
        variables=(("CUDA_DEVICE_ORDER", "FASTEST_FIRST"),),
        out="ddp on 3: cuda, nccl",
        err="device: cuda (3 GPUs; GPUs differ (2 x NVIDIA H100 80GB HBM3, 1 x NVIDIA GeForce RTX 4090), and with"
        " CUDA_DEVICE_ORDER=FASTEST_FIRST CUDA numbers the fastest first; unset it to number them as NVML does)",
    ),
    "a suite": Case(scene=EIGHT, words="suite plan smoke --set defaults.device=cuda --format json"),
    "a suite, unbound": Case(
        scene=EIGHT, words="suite run smoke --set defaults.device=cuda --dry-run --no-bind --format json"
    ),
    "mixed, in order": Case(
        scene=node_of(H100, H100, RTX),
        words="run ddp --batch 9 --dry-run",
        out="ddp on 3: cuda, nccl",
        err="device: cuda (3 GPUs)",
    ),
    "one is lost": Case(
        scene={**EIGHT, "3.All": LOST},
        words="run ddp --batch 7 --dry-run",
        out="ddp on 7: cuda, nccl",
        err="device: cuda (7 GPUs; GPU 3 does not answer (GPU is lost); CUDA uses the other 7)",
    ),
    "one is lost, all are wanted": Case(
        scene={**EIGHT, "3.All": LOST},
        words="run ddp --ranks 8 --dry-run",
        code=2,
        err="ranks is 8 and NCCL needs a GPU for each rank, but 7 can be used: GPU 3 does not answer (GPU is lost);"
        " CUDA uses the other 7; use --ranks 7, or --backend gloo",
    ),
    "all are lost": Case(
        scene={**EIGHT, "All": LOST},
        words="run ddp --device cuda --dry-run",
        code=4,
        err="device is cuda, but NVML: GPUs 0, 1, 2, 3, 4, 5, 6, 7 do not answer (GPU is lost); check `nvidia-smi -L`",
    ),
    "all are lost, no device named": Case(
        scene={**EIGHT, "All": LOST},
        out="ddp on 2: cpu, gloo",
        err="device: cpu (NVML: GPUs 0, 1, 2, 3, 4, 5, 6, 7 do not answer (GPU is lost))",
    ),
    "two driver versions": Case(
        scene={**EIGHT, "Init": MISMATCH},
        words="run ddp --device cuda --dry-run",
        code=4,
        err="device is cuda, but the kernel driver and its library NVML have different versions",
    ),
    "MIG": Case(
        scene={**node_of(*[A100] * 4), **split_by_mig(0), **split_by_mig(1)},
        words="run single --dry-run",
        out="single on 1: cuda, nccl",
        err=f"device: cuda (1 GPU; MIG splits GPU 0, and CUDA shows a process one MIG instance and no other GPU: here"
        f" {mig_uuid(0, 0)}, the first of 14;",
    ),
    "MIG, the instance named": Case(
        scene={**node_of(*[A100] * 4), **split_by_mig(0)},
        words="run single --dry-run",
        variables=(("CUDA_VISIBLE_DEVICES", mig_uuid(0, 3)),),
        out="single on 1: cuda, nccl",
        err=f'device: cuda (1 GPU; CUDA_VISIBLE_DEVICES is "{mig_uuid(0, 3)}" and shows 1 of 4 GPUs)',
    ),
    "a pod with one of eight": Case(
        scene={**EIGHT, **{f"{gpu}.All": FORBIDDEN for gpu in range(8) if gpu != 3}},
        words="run single --dry-run",
        out="single on 1: cuda, nccl",
        err="device: cuda (1 GPU; this process may not open /dev/nvidia* of 7 of 8 GPUs, which a container or a",
    ),
    "a pod with one, which counts as number 0": Case(
        scene=node_of(H100), out="ddp on 1: cuda, nccl", err="device: cuda (1 GPU)"
    ),
    "fewer by the user": Case(
        scene=EIGHT,
        variables=(("CUDA_VISIBLE_DEVICES", "2,3"),),
        out="ddp on 2: cuda, nccl",
        err='device: cuda (2 GPUs; CUDA_VISIBLE_DEVICES is "2,3" and shows 2 of 8 GPUs)',
    ),
    "a driver of CUDA 12": Case(
        scene={**EIGHT, "SystemGetCudaDriverVersion": 12020},
        out="ddp on 8: cuda, nccl",
        err="device: cuda (8 GPUs)",
    ),
    "a torch without CUDA": Case(
        scene=EIGHT,
        cuda=None,
        code=4,
        err="NVML shows 8 GPUs, but torch 2.13.0+made is built without CUDA; install a CUDA build, or use --device cpu",
    ),
    "a torch without CUDA, on the CPU": Case(
        scene=EIGHT, words="run ddp --device cpu --dry-run", cuda=None, out="ddp on 2: cpu, gloo"
    ),
}


@pytest.fixture(scope="module")
def answers(nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each command answered."""
    folder = tmp_path_factory.mktemp("dry")
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("raise RuntimeError('a dry run imports torch')\n")
    node = fake_node(folder, nvml_library, EIGHT)
    cases = [
        {
            "scene": as_text(case.scene),
            "words": case.words.split(),
            "torch": "2.13.0+made",
            "cuda": case.cuda,
            "variables": dict(case.variables),
        }
        for case in CASES.values()
    ]
    done = subprocess.run(
        [sys.executable, "-P", "-B", "-c", DRIVER, str(folder)],
        input=json.dumps(cases),
        env=node.environment(PYTHONPATH=str(folder)),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(CASES, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_dry_run_says_what_the_node_has(name: str, answers: dict[str, list[Any]]) -> None:
    case, (code, out, err) = CASES[name], answers[name]
    assert code == case.code, err
    assert out.startswith(case.out), out
    assert case.err in err
    assert len(err.splitlines()) <= 3  # One says which model the device gets.


def test_no_bind_leaves_the_cases_of_a_suite_unbound(answers: dict[str, list[Any]]) -> None:
    for name, is_bound in (("a suite", True), ("a suite, unbound", False)):
        cases = [case["resolved"] for case in json.loads(answers[name][1])["cases"]]
        on_gpus = [case for case in cases if case is not None and case["device"] == "cuda"]
        assert on_gpus
        assert {case["bind"] for case in on_gpus} == {is_bound}
