"""A rank of a world that is not there builds its part of a large model; prints what the process then has taken.

Usage: python -m tests.workloads.training.rank_of_many STRATEGY RANKS SHAPE [NAME=VALUE ...]
Prints: bytes of weights that the spec gives rank 0, and by how much the process has grown at most, in bytes.
"""

from __future__ import annotations

import resource
import sys
from contextlib import nullcontext
from dataclasses import replace
from pkgutil import resolve_name
from unittest.mock import patch

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.workloads.training.setups import small_setup
from workloads.core import mesh as core_mesh
from workloads.cost_models.shape import PRESETS
from workloads.registry import entry_of, spec_of
from workloads.spec import OptionValue


def _most_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(strategy: str, ranks: int, shape: str, options: dict[str, OptionValue]) -> None:
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    model = replace(PRESETS[shape], batch=ranks, sequence=64)
    setup, spec = small_setup(strategy, ranks=ranks, shape=model, options=options), spec_of(strategy)
    assert spec.all_refusals(setup) == []
    axes = spec.mesh(setup)
    mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    build, before_bytes = resolve_name(entry_of(strategy)), _most_bytes()
    # Groups of such a world have no timeouts.
    with patch.object(core_mesh, "timeout_of"), patch.object(core_mesh, "_set_timeout"):
        workload = build(setup, mesh, lambda name: nullcontext())
    assert all(weight.device.type == "cpu" for weight in workload.model.parameters())
    print(spec.states(setup, 0).parameters_bytes, _most_bytes() - before_bytes)


if __name__ == "__main__":
    words = dict(word.split("=") for word in sys.argv[4:])
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], {name: int(w) if w.isdigit() else w for name, w in words.items()})
