"""The machine of a run: hardware, software and settings, as far as they can be known."""

from __future__ import annotations

import importlib
import os
import platform
import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bench.machine.container import read_container
from bench.machine.gpus import Gpu, GpuLink, Nvml, read_gpus
from collectors.host.system import own_version
from workloads.spec import Device

# Environment variables that can change a measurement, recorded without the secrets in them.

_RELEVANT = (
    *("NCCL_", "RCCL_", "GLOO_", "TP_SOCKET_IFNAME", "UCX_", "FI_"),
    *("TORCH", "PYTORCH_", "TRITON_", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "HIP_", "HSA_", "ROCR_"),
    *("OMP_", "MKL_", "KMP_", "GOMP_", "MALLOC_"),
    *("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_JOB_PARTITION", "SLURM_CPUS_PER_TASK"),
    "SLURM_TOPOLOGY_ADDR",
)
# PAT means a personal access token only as a separate word; otherwise it is part of PATH.
_SECRET = (
    r"token|secret|key|cred|cookie|pass(?![a-z])|passw|passphrase|passcode|pwds?(?![a-z])"
    r"|(?<![a-z])(?:pw|login)s?(?![a-z])|(?<![a-z])auth|(?<![a-z])pats?(?![a-z])|(?<![a-z])sig(?:nature)?(?![a-z])"
)
_SECRET_NAME = re.compile(_SECRET, re.IGNORECASE)
# The characters of harmless settings; a value with any other character is not shown.
_PLAIN = re.compile(r"[A-Za-z0-9_ ,;:=./+^@%~\[\]{}()<>*&?|#-]*")
_BETWEEN_PARTS = re.compile(r"[ ,;:=]+")
# Numbers, words (ring, NVLS, CollnetDirect) and short names (mlx5, LL128): a token is longer, or random with digits.
_WORD = re.compile(r"[A-Za-z0-9]{1,16}|[0-9]{1,20}|[a-z]+|[A-Z]+|(?:[A-Z]?[a-z]{2,}+|[A-Z]{2,4}+)+")
_LONGEST_WORD = 32
# A word of upper case, lower case and digits, as in passwords and tokens; IBext_v8 and B200s are shorter.
_MIXED_WORD = re.compile(r"(?=[a-z0-9]*[A-Z])(?=[A-Z0-9]*[a-z])(?=[A-Za-z]*[0-9])[A-Za-z0-9]+")
_MOST_MIXED = 7
# Up to the last @ of the word: a password may contain an unescaped @, and hiding too much does no harm.
_USERINFO = re.compile(r"(?<=://)\S*@")
_SECRET_QUERY = re.compile(rf"([?&][^=&\s]*(?:{_SECRET})[^=&\s]*=)[^&\s]*", re.IGNORECASE)
REDACTED = "(redacted)"
SHOWN_GPUS = "gpus_shown"
"""Name in `Machine.absent` of why CUDA shows other GPUs than intended."""
CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "TORCH_EXTENSIONS_DIR": "extensions"}
"""Variables that name folders of compiled code, and the subfolder of each in our cache. Their paths do not affect
measurements."""


def relevant(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that can change a measurement, in order of name.

    A value is replaced if the variable's name suggests a secret, or if the value does not look like a setting: numbers,
    words, short names, paths. URLs in other values are redacted.
    """
    return {
        name: REDACTED if _SECRET_NAME.search(name) or not _is_setting(name, redacted := redact(value)) else redacted
        for name, value in sorted(environment.items())
        if name.startswith(_RELEVANT) and name not in CACHES
    }


def _is_setting(name: str, value: str) -> bool:
    """Return whether the value is made of paths, numbers and words: `mlx5_0:1`, `/opt/cuda`, `max_split_size_mb:64`."""
    return _PLAIN.fullmatch(value) is not None and all(
        part.startswith(("/", "~/", "./")) or _has_words_only(name, re.findall(r"[A-Za-z0-9]+", part))
        for part in _BETWEEN_PARTS.split(value)
    )


def _has_words_only(name: str, words: list[str]) -> bool:
    # Slurm's variables name partitions and nodes, for example gpuA100x4.
    mixed = 0 if name.startswith("SLURM_") else sum(len(word) for word in words if _MIXED_WORD.fullmatch(word))
    return mixed <= _MOST_MIXED and all(len(word) <= _LONGEST_WORD and _WORD.fullmatch(word) for word in words)


def redact(text: str) -> str:
    """Return the text without the user, password and secret query values of the URLs in it."""
    return _SECRET_QUERY.sub(rf"\1{REDACTED}", _USERINFO.sub(f"{REDACTED}@", text))


SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A node, as seen by the process that read it. An unknown value is None, with its reason in `absent`.

    gpus, links: those that the process may use.
    torch_cuda_version, torch_hip_version: the CUDA, or AMD's HIP, that torch is built for.
    cuda_driver_version: the newest CUDA that the driver supports.
    usable_cores, physical_cores: logical CPUs that the process may run on, and the physical cores behind them.
    memory_bytes: of the whole node, regardless of a container's limit.
    commit, is_dirty: of this program's source tree, and whether it had changes.
    environment: variables that can change a measurement; see `relevant`.
    container_image: of the container that the process is in, as the container engine names it.
    cpu_limit_cores, memory_limit_bytes: the limits of the process's control groups.
    nodes_here: the number of an engine's nodes that this machine stands for; more than one if nodes are simulated.
    """

    hostname: str
    system: str
    kernel: str
    architecture: str
    python_version: str
    own_version: str | None
    commit: str | None
    is_dirty: bool | None
    torch_version: str | None
    torch_cuda_version: str | None
    nccl_version: str | None
    driver_version: str | None
    gpus: tuple[Gpu, ...]
    links: tuple[GpuLink, ...]
    cpu: str | None
    usable_cores: int
    physical_cores: int | None
    memory_bytes: int
    environment: dict[str, str]
    torch_hip_version: str | None = None
    cuda_driver_version: str | None = None
    container_image: str | None = None
    cpu_limit_cores: float | None = None
    memory_limit_bytes: int | None = None
    nodes_here: int = 1
    absent: dict[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def hardware(self, device: Device) -> str:
        """Return a description that is equal for machines whose results on this device are comparable."""
        words = _gpu_words(self.gpus)
        if device == "cpu":
            words = _cpu_words(self.cpu, self.architecture, self.usable_cores)
        return words if self.nodes_here == 1 else f"{words}, as {self.nodes_here} nodes"


def hardware_here(device: Device, *, cores: int, gpus: Sequence[Gpu], root: Path = Path("/")) -> str:
    """Return `Machine.hardware` of this machine without importing torch. root: where /proc is."""
    return _cpu_words(_cpu_model(root, {}), platform.machine(), cores) if device == "cpu" else _gpu_words(gpus)


def _cpu_words(model: str | None, architecture: str, usable_cores: int) -> str:
    cores = "1 core" if usable_cores == 1 else f"{usable_cores} cores"
    return f"{model or f'unnamed {architecture} CPU'}, {cores}"


def _gpu_words(gpus: Sequence[Gpu]) -> str:
    counts = Counter(gpu.name for gpu in gpus)
    return ", ".join(f"{count} x {name}" for name, count in sorted(counts.items())) or "unnamed GPUs"


def gpu_named(hardware: str) -> str | None:
    """Return the name of the GPU in the words of `Machine.hardware`; None for a CPU, and for different GPUs.

    Example: "8 x NVIDIA H100 80GB HBM3, as 2 nodes" names the NVIDIA H100 80GB HBM3.
    """
    match = re.fullmatch(r"\d+ x ([^,]+)(, as \d+ nodes)?", hardware)
    return None if match is None else match[1]


def read(
    *,
    nvml: Nvml | None = None,
    torch: Any = None,
    environment: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    source: Path = Path(__file__).parents[2],
) -> Machine:
    """Return the machine of this process. Imports torch unless it is passed in, but starts no CUDA.

    If torch cannot be imported, the fields that depend on it are absent, with the reason.

    root: where /proc and /sys are. source: the source tree that this program runs from.
    """
    absent: dict[str, str] = {}
    torch_fields = _torch_fields(torch, absent)
    gpus = read_gpus(nvml, environment)
    absent |= gpus.absent
    if gpus.hidden is not None and gpus.hidden.is_mistake:
        absent[SHOWN_GPUS] = gpus.hidden.text
    if "cuda_version" in absent:
        absent["cuda_driver_version"] = absent.pop("cuda_version")
    container = read_container(environment, root)
    absent |= {"container_image" if name == "image" else name: why for name, why in container.absent.items()}
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    commit, is_dirty = _source_state(source, absent)
    version = own_version()
    if version is None:
        absent["own_version"] = "parallel-observatory is not installed; it runs from its source tree"
    return Machine(
        hostname=platform.node(),
        system=platform.system(),
        kernel=platform.release(),
        architecture=platform.machine(),
        python_version=platform.python_version(),
        own_version=version,
        commit=commit,
        is_dirty=is_dirty,
        **torch_fields,
        driver_version=gpus.driver_version,
        cuda_driver_version=gpus.cuda_version,
        gpus=gpus.gpus,
        links=gpus.links,
        cpu=_cpu_model(root, absent),
        usable_cores=len(usable),
        physical_cores=_physical_cores(root, usable, absent),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        environment=relevant(environment),
        container_image=None if container.image is None else redact(container.image),
        cpu_limit_cores=container.cpu_limit_cores,
        memory_limit_bytes=container.memory_limit_bytes,
        absent=absent,
    )


def own_build(source: Path = Path(__file__).parents[2]) -> tuple[str | None, str | None]:
    """Return this program's version, None if it is not installed, and its commit, None if unknown."""
    commit, _ = _source_state(source, {})
    return own_version(), commit


def _torch_fields(torch: Any, absent: dict[str, str]) -> dict[str, Any]:
    """Return the fields that torch reports; all None if torch, or a library that it needs, is not installed."""
    fields: dict[str, Any] = dict.fromkeys(("torch_version", "torch_cuda_version", "torch_hip_version", "nccl_version"))
    if torch is None:
        # By name: otherwise import-linter would count every importer of this module as importing torch.
        try:
            torch = importlib.import_module("torch")
        except (ImportError, OSError, ValueError) as error:
            absent |= dict.fromkeys(fields, f"torch cannot be imported: {' '.join(str(error).split())}")
            return fields
    cuda, hip = torch.version.cuda, getattr(torch.version, "hip", None)
    fields["torch_version"] = str(torch.__version__)
    if cuda is not None:
        fields["torch_cuda_version"] = str(cuda)
    else:
        absent["torch_cuda_version"] = f"torch is built for ROCm {hip}" if hip else "torch is built without CUDA"
    if hip is not None:
        fields["torch_hip_version"] = str(hip)
    else:
        absent["torch_hip_version"] = "torch is built without ROCm"
    if hasattr(torch._C, "_nccl_version"):
        fields["nccl_version"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    else:
        absent["nccl_version"] = "torch is built without NCCL"
    return fields


class _BuiltFrom(msgspec.Struct, frozen=True, kw_only=True):
    """The git tree that this package was built from."""

    commit: str
    is_dirty: bool


def _source_state(source: Path, absent: dict[str, str]) -> tuple[str | None, bool | None]:
    """Return the commit of the tree, and whether tracked files are changed; both None if unknown.

    An installed package has what hatch_build.py recorded when it was built.
    """
    built_from = source / "bench/machine/built_from.json"
    try:
        if not (source / ".git").exists():
            if not built_from.exists():
                raise FileNotFoundError(f"{source} is not a git tree, and was not built from one")
            noted = msgspec.json.decode(built_from.read_bytes(), type=_BuiltFrom)
            return noted.commit, noted.is_dirty
        commit = _git(source, "rev-parse", "HEAD")
        return commit, bool(_git(source, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError) as error:
        stderr = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else ""
        absent["commit"] = absent["is_dirty"] = " ".join((stderr or str(error)).split())
        return None, None


def _git(source: Path, *arguments: str) -> str:
    # No optional locks: `git status` must not write to a tree that somebody is working in.
    command = ["git", "--no-optional-locks", "-C", str(source), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()


def _cpu_model(root: Path, absent: dict[str, str]) -> str | None:
    try:
        lines = (root / "proc/cpuinfo").read_text().splitlines()
    except OSError as error:
        absent["cpu"] = f"/proc/cpuinfo: {error.strerror}"
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return " ".join(value.split())
    absent["cpu"] = "/proc/cpuinfo names no model"
    return None


def _physical_cores(root: Path, usable: list[int], absent: dict[str, str]) -> int | None:
    """Return the number of physical cores behind the logical CPUs, identified by package and core number."""
    cores = set()
    for cpu in usable:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        try:
            cores.add(tuple((topology / name).read_text().strip() for name in ("physical_package_id", "core_id")))
        except OSError as error:
            absent["physical_cores"] = f"/sys has no topology of cpu{cpu}: {error.strerror}"
            return None
    return len(cores)
