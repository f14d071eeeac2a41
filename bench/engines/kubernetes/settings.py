"""Settings of a suite on Kubernetes: what its pods are, in the user's file, and what a pod tells the engine in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from bench.engines.settings_file import read_settings
from bench.errors import Misuse

PORT = 9475
"""Where the runner waits for agents, in the first pod."""
LONGEST_NAME = 40
"""Of a JobSet: the names of its pods, which end in "-node-0-4095-x7k2p", are those of hosts, too: 63 characters."""
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DIGEST = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?")


class KubernetesSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file that `observatory suite render --engine-file` reads.

    image: with its digest, unless image_by_tag allows a tag. claim: of the volume for results, whose pods may be on
    several nodes (ReadWriteMany). name, namespace: of the JobSet; by default after the suite, and kubectl's own.
    queue: Kueue's. priority_class, runtime_class, node_selector, tolerations, annotations, pull_secret, host_network:
    of the pods. gpus: of a pod, called gpu_resource; by default --ranks-per-node. cpu, memory, resources: what else a
    pod asks for. shm: size of /dev/shm. ipc_lock: whether the capability is given. user: under which the pods run; 0 is
    root. restarts: how often the JobSet begins again when a node or the infrastructure failed. port: of the runner.
    python: the image's interpreter that has the package. setup: lines of a shell, before it. environment: of the ranks.
    store_secret: has the history's URL under `url`; by default the history is SQLite on the volume.
    """

    image: str
    claim: str
    image_by_tag: bool = False
    name: str | None = None
    namespace: str | None = None
    queue: str | None = None
    priority_class: str | None = None
    runtime_class: str | None = None
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, str], ...] = ()
    annotations: dict[str, str] = {}
    pull_secret: str | None = None
    host_network: bool = False
    gpus: int | None = None
    gpu_resource: str = "nvidia.com/gpu"
    cpu: str | None = None
    memory: str | None = None
    resources: dict[str, str] = {}
    shm: str = "16Gi"
    ipc_lock: bool = True
    user: int = 65532
    restarts: int = 3
    port: int = PORT
    python: str = "python"
    setup: str = ""
    environment: dict[str, str] = {}
    store_secret: str | None = None


def read_kubernetes_settings(path: Path | None) -> KubernetesSettings:
    """Return the settings of the user's file.

    Raises:
        Misuse: it cannot be read, lacks a field, or has one that is unknown or cannot be.
    """
    settings = read_settings(path, KubernetesSettings, "Kubernetes")
    if not settings.image_by_tag and _DIGEST.fullmatch(settings.image) is None:
        raise Misuse(
            f'{path}: image "{settings.image}" has no digest, so that what it names may change between nodes and'
            " nights; write it as NAME@sha256:..., or set image_by_tag = true"
        )
    if not settings.image or any(letter.isspace() for letter in settings.image):
        raise Misuse(f'{path}: image "{settings.image}" names no image; it may be such as NAME@sha256:...')
    for field in ("name", "namespace", "claim", "queue", "priority_class", "runtime_class", "pull_secret"):
        if (value := getattr(settings, field)) is not None:
            check_name(value, f"{path}: {field}", longest=LONGEST_NAME if field == "name" else 63)
    if settings.store_secret is not None:
        check_name(settings.store_secret, f"{path}: store_secret")
    for field, value in (("cpu", settings.cpu), ("memory", settings.memory), ("shm", settings.shm)):
        if value is not None and _QUANTITY.fullmatch(value) is None:
            raise Misuse(f'{path}: {field} "{value}" is no quantity of Kubernetes; it may be such as 8, 500m or 64Gi')
    limits = {"gpus": (0, 1024), "user": (0, 2**31 - 1), "restarts": (0, 1000), "port": (1024, 65535)}
    for field, (least, most) in limits.items():
        if (number := getattr(settings, field)) is not None and not least <= number <= most:
            raise Misuse(f"{path}: {field} is {number}; it may be {least} to {most}")
    return settings


def check_name(text: str, what: str, *, longest: int = 63) -> str:
    """Return the text, which is a name that Kubernetes takes.

    Raises:
        Misuse: it takes no such name.
    """
    if _LABEL.fullmatch(text) is None or len(text) > longest:
        raise Misuse(
            f'{what} "{text}" cannot be a name in Kubernetes, which has small letters, digits and "-", begins with a'
            f" letter and has at most {longest} characters"
        )
    return text


def name_after(suite: str) -> str:
    """Return the name of a suite's JobSet."""
    words = re.sub(r"[^a-z0-9]+", "-", suite.lower()).strip("-")
    return f"observatory-{words}"[:LONGEST_NAME].strip("-")


class PodSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file that the first pod writes for the engine in it.

    key_file: of mode 0600. address, port: of this pod, where the agents of the others come. pods: how their names
    begin; a number follows.
    """

    key_file: str
    address: str
    port: int = PORT
    pods: str = "pod"

    def as_toml(self) -> str:
        """Return the file's text."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return "".join(f"{name} = {msgspec.json.encode(value).decode()}\n" for name, value in fields.items())
