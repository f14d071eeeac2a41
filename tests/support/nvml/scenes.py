"""Scenes: the fake NVML's answers, as data. nvml.c describes the form of a line; numbers are in NVML's own units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Answers: TypeAlias = dict[str, "str | int | float"]
Scene: TypeAlias = Mapping[str, "str | int | float"]
"""Answers by question; "3.PowerUsage" is GPU 3's own answer, and "PowerUsage" that of all others."""

MIB, GIB = 1 << 20, 1 << 30
LOST, FORBIDDEN, UNSUPPORTED, MISMATCH = "!15", "!4", "!3", "!18"
NO_PEER = 1
"""nvml.h, NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED."""
XID, SINGLE_BIT, DOUBLE_BIT = 0x8, 0x1, 0x2
POWER_CAP, SOFTWARE_THERMAL, HARDWARE_THERMAL = 0x4, 0x20, 0x40
"""Bits of CurrentClocksEventReasons."""


def as_text(scene: Scene) -> str:
    """Return the text of the scene's file."""
    return "".join(f"{question}={answer}\n" for question, answer in scene.items())


def uuid(gpu: int) -> str:
    """Return a GPU's UUID."""
    return f"GPU-{0xABC00000 + gpu:08x}-0000-4000-8000-00000000{gpu:04x}"


def mig_uuid(gpu: int, place: int) -> str:
    """Return the UUID of a GPU's MIG instance."""
    return f"MIG-{0xABC00000 + gpu:08x}-0000-4000-8000-0000000{place:x}{gpu:04x}"


def pci_address(gpu: int) -> str:
    """Return a GPU's PCI address."""
    return f"00000000:{0x10 + 0xB * gpu:02X}:00.0"


_NODE: Answers = {
    "SystemGetDriverVersion": "580.95.05",
    "SystemGetNVMLVersion": "13.580.95.05",
    "SystemGetCudaDriverVersion": 13000,
}
_GPU: Answers = {
    "VbiosVersion": "96.00.89.00.01",
    "PersistenceMode": 1,
    "MigMode": 0,
    "MaxMigDeviceCount": 7,
    "NumaNodeId": UNSUPPORTED,  # Only for a GPU that is itself a NUMA node, as with GB200's memory.
    "MaxPcieLinkGeneration": 5,
    "MaxPcieLinkWidth": 16,
    "CurrPcieLinkGeneration": 5,
    "CurrPcieLinkWidth": 16,
    "UtilizationRates.0": 97,
    "UtilizationRates.1": 43,
    "EncoderUtilization": 0,
    "DecoderUtilization": 0,
    "Memory.reserved": 560 * MIB,
    "BAR1Memory.total": 128 * GIB,
    "BAR1Memory.used": 2 * MIB,
    "PowerUsage": 612_345,
    "Temperature": 55,
    "MarginTemperature": 32,
    "ClockInfo.1": 1755,
    "ClockInfo.2": 2619,
    "ClockInfo.3": 1545,
    "MaxClockInfo.1": 1980,
    "MaxClockInfo.2": 2619,
    "MaxClockInfo.3": 1545,
    "CurrentClocksEventReasons": 0,
    "TotalEccErrors": 0,
    "RemappedRows": 0,
    "ComputeRunningProcesses": "",
    "GraphicsRunningProcesses": "",
    "ProcessUtilization": "",
    "RegisterEvents": 0,
    "Events": "",
    "SupportedEventTypes": XID | SINGLE_BIT | DOUBLE_BIT,
    "P2PStatus": 0,
    **{f"Field.{number}": 0 for number in (*range(74, 80), 94, 173, 179, 180, 230, 269, 270, 271)},
    **{f"Field.{number}": 0 for number in (3, 4, 5, 6, 142, 143, 144, 145)},  # ECC errors, and rows remapped for them.
    "Field.82": 70,  # Temperature of the memory.
    "Field.83": "5000000+640000",  # Energy, mJ.
    "Field.186": 640_000,  # Power now, mW.
    "Field.197": "0+5e9",  # PCIe bytes, which wrap at 32 bits.
    "Field.198": "0+4e9",
}
_GPM: Answers = {
    "GpmQueryDeviceSupport": 1,
    "GpmSampleGet": 0,
    **{f"Gpm.{number}": 40 + number for number in (*range(1, 8), 9, 10, 11, 12, 13)},
    **{f"Gpm.{number}": 1000 + number for number in (20, 21, 60, 61)},  # MiB/s.
}
"""Hopper and later."""


def _nvlinks(count: int, version: int, fields: Scene) -> Answers:
    up: Answers = {f"NvLinkState.{link}": 1 for link in range(count)}
    return {**up, "NvLinkState": "!2", "NvLinkVersion": version, **fields}


def _power(limit_mw: int) -> Answers:
    limits: Answers = {f"Field.{number}": limit_mw for number in (188, 189, 190)}
    return {"EnforcedPowerLimit": limit_mw, "Field.187": 200_000, **limits}


_NVLINK_4: Answers = {
    **{f"Field.{number}": 0 for number in (38, 45, 52, 59, 160)},
    # KiB since the driver was loaded, of all links and of each. Source: nvml.h, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX.
    "Field.138.all": 18_000_000,
    "Field.139.all": 9_000_000,
    "Field.138": 1_000_000,
    "Field.139": 500_000,
}
_NVLINK_5: Answers = {
    **{f"Field.{number}": UNSUPPORTED for number in (38, 45, 52, 59, 160)},
    **{f"Field.{number}.all": 0 for number in range(206, 220)},
    # Bytes. Source: nvml.h, NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES.
    "Field.202.all": 36_000_000_000,
    "Field.204.all": 18_000_000_000,
    "Field.202": 2_000_000_000,
    "Field.204": 1_000_000_000,
}
H100: Scene = {
    **_GPU,
    **_GPM,
    **_power(700_000),
    **_nvlinks(18, 6, _NVLINK_4),
    "Name": "NVIDIA H100 80GB HBM3",
    "Memory.total": 81_559 * MIB,
    "Memory.free": 80_000 * MIB,
    "GpuFabricInfo.state": 3,
    "GpuFabricInfo.clique": 0,
}
B200: Scene = {
    **H100,
    **dict.fromkeys(_NVLINK_4, UNSUPPORTED),
    **_power(1_000_000),
    **_nvlinks(18, 7, _NVLINK_5),
    "Name": "NVIDIA B200",
    "Memory.total": 183_359 * MIB,
    "Memory.free": 182_000 * MIB,
}
A100: Scene = {
    **_GPU,
    **_power(400_000),
    **_nvlinks(12, 4, _NVLINK_4),
    "Name": "NVIDIA A100-SXM4-80GB",
    "MaxPcieLinkGeneration": 4,
    "CurrPcieLinkGeneration": 4,
    "PowerUsage": 312_345,
    "Field.186": 340_000,
    "GpmQueryDeviceSupport": 0,
    "GpuFabricInfo.state": UNSUPPORTED,
    "Memory.total": 81_920 * MIB,
    "Memory.free": 80_400 * MIB,
}
RTX: Scene = {
    **_GPU,
    **_power(450_000),
    "Name": "NVIDIA GeForce RTX 4090",
    "MaxPcieLinkGeneration": 4,
    "CurrPcieLinkGeneration": 4,
    "PowerUsage": 412_345,
    "Field.186": 420_000,
    "MigMode": UNSUPPORTED,
    "MaxMigDeviceCount": UNSUPPORTED,
    "NvLinkState": UNSUPPORTED,
    "P2PStatus": NO_PEER,
    "GpmQueryDeviceSupport": 0,
    "RemappedRows": UNSUPPORTED,
    "Memory.total": 24_564 * MIB,
    "Memory.free": 24_000 * MIB,
    "Memory.reserved": 400 * MIB,
    "BAR1Memory.total": 32 * GIB,
    **{f"Field.{number}": UNSUPPORTED for number in (3, 4, 5, 6, 82, 142, 143, 144, 145)},
}


def node_of(*models: Scene) -> Answers:
    """Return a node of these GPUs; the first half are at one socket, and the others at another."""
    gpus, common = len(models), models[0]
    scene: Answers = {**_NODE, "Count": gpus, **common}
    for gpu, model in enumerate(models):
        half = gpu * 2 // gpus
        if model is not common:
            scene |= {f"{gpu}.{question}": model.get(question, UNSUPPORTED) for question in {**common, **model}}
        scene |= {
            f"{gpu}.UUID": uuid(gpu),
            f"{gpu}.Serial": f"16506231{gpu:05d}",
            f"{gpu}.PciInfo": pci_address(gpu),
            f"{gpu}.CpuAffinity": f"{half * 32}-{half * 32 + 31}",
            f"{gpu}.MemoryAffinity": str(half),
        }
        for other, its_model in enumerate(models):
            scene[f"{gpu}.TopologyCommonAncestor.{other}"] = 40 if half == other * 2 // gpus else 50
            if its_model is not model:
                scene[f"{gpu}.P2PStatus.{other}"] = NO_PEER
    return scene


def split_by_mig(gpu: int, *, instances: int = 7) -> Answers:
    """Return the answers of a GPU that MIG splits into this many instances of 1g.10gb."""
    scene: Answers = {f"{gpu}.MigMode": 1, f"{gpu}.UtilizationRates": UNSUPPORTED}
    scene |= {f"{gpu}.UtilizationRates.{place}": UNSUPPORTED for place in range(2)}
    scene |= {f"{gpu}.ComputeRunningProcesses": FORBIDDEN, f"{gpu}.ProcessUtilization": UNSUPPORTED}
    for place in range(instances):
        own = f"{gpu}.Mig.{place}."
        scene |= {
            f"{own}UUID": mig_uuid(gpu, place),
            f"{own}Name": "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
            f"{own}GpuInstanceId": 7 + place,
            f"{own}ComputeInstanceId": 0,
            f"{own}Memory.total": 9728 * MIB,
            f"{own}Memory.reserved": 13 * MIB,
            f"{own}Memory.free": (9000 - place) * MIB,
            f"{own}ComputeRunningProcesses": "",
        }
    return scene
