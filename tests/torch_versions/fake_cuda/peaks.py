"""Prints a table of what each case of a shipped suite holds on CUDA, and where it fits.

make test-torch TORCH=2.12    # makes the environment
.venv-torch-2.12/bin/python -m tests.torch_versions.fake_cuda.peaks
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.case import Case
from tests.bench.made.nodes import GPU_BYTES
from tests.torch_versions.fake_cuda.cases import folded_cases
from tests.torch_versions.fake_cuda.machine import build, fake_machine
from workloads.cost_models.peak_memory import Prediction

SMALL_BYTES = 10**9
"""Cases of tiny models fit everywhere, and are left out."""


def law_bytes(case: Case) -> int | None:
    """Return the peak by the cost model; None where it covers no such case."""
    peak = case.spec().peak(case)
    return peak.total_bytes if isinstance(peak, Prediction) else None


def main() -> None:
    print("| case | ranks | precision | cost model, GB | allocator, GB | 80 GB | 141 GB | 183 GB |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as text, fake_machine(build(Path(text)), Path(text)) as machine:
        for name, case in folded_cases().items():
            if case.model is None or case.shape.parameters() * 4 < SMALL_BYTES or case.options.get("offload"):
                continue
            predicted = law_bytes(case)
            measured = machine.run_largest(case).peak_bytes
            assert measured is not None, name
            fits = ["yes" if measured < gpu_bytes else "no" for gpu_bytes in GPU_BYTES.values()]
            law = "-" if predicted is None else f"{predicted / 1e9:.1f}"
            row = (name, case.ranks, case.precision, law, f"{measured / 1e9:.1f}", *fits)
            print("| " + " | ".join(map(str, row)) + " |", flush=True)


if __name__ == "__main__":
    main()
