"""The fingerprint of a machine and its environment: equal if nothing differs that may change a measurement."""

from __future__ import annotations

import hashlib

import msgspec

from bench.machine.machine import Machine

_ITSELF = frozenset({"hostname", "own_version", "commit", "is_dirty", "absent", "schema_version"})
"""Fields that identify the node, this program's build, and what could not be read."""
OF_A_JOB = frozenset({"SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_TOPOLOGY_ADDR"})
"""Variables that differ in each allocation."""
_OF_A_GPU = frozenset({"index", "uuid", "near_cpus"})
"""Fields that distinguish a GPU from the others of its node."""


def fingerprint(machine: Machine) -> str:
    """Return 12 hex digits of the SHA-256 of the machine's hardware, software and settings.

    Nodes of one kind share a fingerprint: names and serial numbers do not count. This program's commit, which is
    recorded separately, does not count either.
    """
    fields = {name: value for name, value in msgspec.to_builtins(machine).items() if name not in _ITSELF}
    fields["environment"] = {name: value for name, value in machine.environment.items() if name not in OF_A_JOB}
    fields["gpus"] = [{name: value for name, value in gpu.items() if name not in _OF_A_GPU} for gpu in fields["gpus"]]
    return hashlib.sha256(msgspec.json.encode(fields, order="deterministic")).hexdigest()[:12]
