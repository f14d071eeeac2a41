"""The fake machine: builds runtime.c, and runs ranks of cases on it by trials.py."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from bench.case import Case
from bench.rank.fault_injection import Fault
from bench.rank.messages import TrialEnded, TrialOrder
from collectors.metrics.rank import PEAK_BYTES
from collectors.sample_log import Opened, Reading, read

SOURCE = Path(__file__).with_name("runtime.c")
UNLIMITED_BYTES = 10**13
"""Memory of a GPU that no case fills."""
LIMIT_S = 600.0


def build(folder: Path) -> Path:
    """Build the library that is preloaded, with the headers of CUDA that stand beside torch.

    Its name is the driver's, which torch therefore takes to be loaded.
    """
    (header,) = Path(torch.__file__).parents[1].glob("nvidia/**/include/cuda_runtime_api.h")
    library = folder / "fake_cuda.so"
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wl,-soname,libcuda.so.1", f"-I{header.parent}"]
    subprocess.run(["cc", *options, "-o", library, SOURCE], check=True)
    return library


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A trial of one rank or more. pid, said: of the first rank; its process, and what it printed. peak_bytes: the
    allocator's peak on the rank with most, which a probe has not.
    """

    ended: TrialEnded
    pid: int
    peak_bytes: int | None
    said: str

    @property
    def failure(self) -> str:
        """Why it failed, with what was said; empty if it ended well."""
        cause = self.ended.cause
        return "" if cause is None else "\n".join([cause.text, *cause.last_lines])

    @property
    def elsewhere(self) -> list[str]:
        """Training state that is not on the GPU."""
        return [line for line in self.said.splitlines() if line.startswith("not on the GPU:")]

    @property
    def attention(self) -> set[str]:
        """Operators by which torch attended, as autograd names them; the ring calls its kernels itself."""
        start = "attended by: "
        return {line.removeprefix(start) for line in self.said.splitlines() if line.startswith(start)}

    @property
    def warnings(self) -> list[str]:
        """Warnings that the rank printed, without one that the option which it names asks for."""
        warnings = [line for line in self.said.splitlines() if "Warning" in line]
        return [line for line in warnings if "find_unused_parameters=True was specified" not in line]


class FakeMachine:
    """A process with the product's supervisor, whose ranks meet the fake CUDA."""

    def __init__(self, process: subprocess.Popen[str], runs: Path) -> None:
        self._process = process
        self._runs = runs
        self._trials = 0

    def run(
        self,
        case: Case,
        *,
        first_rank: int = 0,
        ranks: int | None = 1,
        store: Path | None = None,
        fault: Fault | None = None,
        limit_s: float = LIMIT_S,
    ) -> Ran:
        """Run ranks of the case, beginning with first_rank; others need not be there.

        ranks: None for all that follow. store: a file in which rank 0 has left what NCCL begins with.
        """
        self._trials += 1
        run = f"run{self._trials}"
        order = TrialOrder(
            run=run,
            trial=0,
            case=case,
            limit_s=limit_s,
            first_rank=first_rank,
            local_ranks=ranks,
            store=str(store or self._runs / f"{run}.store"),
            fault=fault,
        )
        ended = self._send(order)
        log = self._runs / run / f"rank{first_rank}"
        records = read(log.with_suffix(".jsonl")).records
        (pid,) = (record.pid for record in records if isinstance(record, Opened))
        last_rank = case.ranks if ranks is None else first_rank + ranks
        peaks = [
            peak for rank in range(first_rank, last_rank) for peak in _peaks(self._runs / run / f"rank{rank}.jsonl")
        ]
        said = log.with_suffix(".err").read_text(errors="replace")
        return Ran(ended=ended, pid=pid, peak_bytes=max(peaks, default=None), said=said)

    def run_largest(self, case: Case) -> Ran:
        """Run the rank of the case that holds most: of a pipeline the first, with most microbatches, or the last, with
        the logits. Where one of them fails, it is that one.
        """
        if case.strategy == "parameter_server":  # Workers and server answer each other by RPC, so that all are there.
            return self.run(case, ranks=None)
        if case.model is None or case.spec().pipeline(case) is None:
            return self.run(case)
        store = self._runs / f"run{self._trials}.shared"
        first = self.run(case, store=store)
        if first.failure:
            return first
        last = self.run(case, first_rank=case.ranks - 1, store=store)
        return last if last.failure else max(first, last, key=lambda ran: ran.peak_bytes or 0)

    def _send(self, order: TrialOrder) -> TrialEnded:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(order).decode() + "\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._process.stdout.readline(), type=TrialEnded)


def _peaks(log: Path) -> list[int]:
    """Return the allocator's peaks that a rank recorded."""
    readings = (record for record in read(log).records if isinstance(record, Reading))
    samples = (sample for reading in readings for sample in reading.samples)
    return [int(sample.value) for sample in samples if sample.metric == PEAK_BYTES.name]


@contextmanager
def fake_machine(
    library: Path, folder: Path, *, counter: Path | None = None, calls: Path | None = None
) -> Iterator[FakeMachine]:
    """Start the machine, whose GPUs no case fills; end it and its forkserver at the end.

    counter: a library that counts calls into the file `calls`.
    """
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(str(path) for path in (counter, library) if path is not None),
        "FAKE_CUDA_BYTES": str(UNLIMITED_BYTES),
        "COUNTED_CALLS": str(calls),
        "TORCH_NCCL_RANKS_PER_ROOT": "1024",  # By default rank 0 waits for rank 128, which is not there.
    }
    command = [sys.executable, "-m", "tests.torch_versions.fake_cuda.trials", str(folder)]
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True
        )
    try:
        yield FakeMachine(process, folder)
    finally:
        process.communicate()
