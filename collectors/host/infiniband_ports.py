"""The ports for RDMA that the kernel lists: InfiniBand's, and those of adapters that speak RoCE."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from collectors.host.kernel_files import KernelFiles

CLASS = "sys/class/infiniband"


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One port. device, number: as the kernel names them; folder: where its files are."""

    device: str
    number: str
    folder: str

    def __str__(self) -> str:
        return f"InfiniBand {self.device} port {self.number}"

    @property
    def labels(self) -> dict[str, str]:
        """Those that all its samples bear."""
        return {"device": self.device, "port": self.number}


def ports(files: KernelFiles) -> Iterator[Port]:
    """Every port of this moment, in order; none where there is no adapter."""
    for device in _names(files, CLASS):
        for number in _names(files, f"{CLASS}/{device}/ports"):
            yield Port(device=device, number=number, folder=f"{CLASS}/{device}/ports/{number}")


def counters(files: KernelFiles, port: Port, folder: str, wanted: tuple[str, ...]) -> dict[str, int]:
    """Those of the wanted counters that the port has; adapters and drivers differ.

    Raises:
        OSError: the port does not answer.
        ValueError: it answers with no number.
    """
    there = set(_names(files, f"{port.folder}/{folder}"))
    return {name: int(files.text(f"{port.folder}/{folder}/{name}")) for name in wanted if name in there}


def _names(files: KernelFiles, folder: str) -> tuple[str, ...]:
    try:
        return files.names(folder)
    except FileNotFoundError:
        return ()
