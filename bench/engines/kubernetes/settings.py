"""Settings of a suite on Kubernetes: the user's file about the pods, and the first pod's file for its engine."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from bench.engines.settings_file import Environment, Interpreter, read_settings
from bench.errors import Misuse

PORT = 9475
"""The port at which the runner in the first pod waits for agents."""
LONGEST_NAME = 40
"""Longest name of a JobSet. Its pods' names end in "-node-0-4095-x7k2p" and are also host names: 63 characters."""
_DIGEST = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")
_PARTS = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_WORD = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_IMAGE = "the name of an image, for example NAME@sha256:..."
_LABEL = 'a name of small letters, digits and "-" that begins with a letter, of at most {} characters'
_SUBDOMAIN = 'a name of small letters, digits, "-" and ".", of at most {} characters'


def _name(words: str, pattern: str, longest: int) -> Meta:
    return Meta(pattern=f"^{pattern}$(?!\n)", max_length=longest, title=words.format(longest))


Label = Annotated[str, _name(_LABEL, "[a-z]([-a-z0-9]*[a-z0-9])?", 63)]
JobSetName = Annotated[str, _name(_LABEL, "[a-z]([-a-z0-9]*[a-z0-9])?", LONGEST_NAME)]
Subdomain = Annotated[str, _name(_SUBDOMAIN, _PARTS, 253)]
Queue = Annotated[str, _name(_SUBDOMAIN, _PARTS, 63)]
"""Name of a queue, which is also the value of a label."""
Quantity = Annotated[
    str,
    Meta(
        pattern=r"^[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?$(?!\n)",
        title="a quantity of Kubernetes, for example 8, 500m or 64Gi",
    ),
]
Key = Annotated[
    str, Meta(pattern=rf"^({_PARTS}/)?{_WORD}$(?!\n)", title="a key of Kubernetes, for example example.com/gpu")
]
LabelValue = Annotated[
    str,
    Meta(pattern=rf"^({_WORD})?$(?!\n)", title='the value of a label: letters, digits and "-_."'),
]
OWN_VARIABLES = ("HOME", "POD_ADDRESS", "JOBSET_UID", "OBSERVATORY_IMAGE", "OBSERVATORY_STORE")
"""Variables that the manifest sets in each pod."""


class Toleration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A taint that the pods tolerate."""

    key: Key | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class KubernetesSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file that `observatory suite render --engine-file` reads.

    image: the image's name with its digest; image_by_tag allows a tag instead. claim: the claim of the volume for
    results; if pods are on several nodes, it must be ReadWriteMany.
    name, namespace: the JobSet's; by default after the suite, and kubectl's own. queue: Kueue's queue.
    priority_class, runtime_class, node_selector, tolerations, annotations, pull_secret, host_network: the pods'.
    gpus: GPUs per pod, as the resource gpu_resource; by default --ranks-per-node. cpu, memory, resources: other
    requests of a pod. shm: size of /dev/shm. ipc_lock: whether pods get this capability. user: the user ID of the pods;
    0 is root.
    restarts: how often the JobSet restarts when a node or the infrastructure failed. port: the runner's port.
    python: the image's interpreter that has the package. setup: shell lines that run before it. environment: variables
    of the ranks.
    store_secret: Secret with the history's URL under `url`; by default the history is SQLite on the volume.
    """

    image: Annotated[str, Meta(pattern=r"^\S+$(?!\n)", title=_IMAGE)]
    claim: Subdomain
    image_by_tag: bool = False
    name: JobSetName | None = None
    namespace: Label | None = None
    queue: Queue | None = None
    priority_class: Subdomain | None = None
    runtime_class: Subdomain | None = None
    node_selector: dict[Key, LabelValue] = {}
    tolerations: tuple[Toleration, ...] = ()
    annotations: dict[Key, str] = {}
    pull_secret: Subdomain | None = None
    host_network: bool = False
    gpus: Annotated[int, Meta(ge=0, le=1024)] | None = None
    gpu_resource: Key = "nvidia.com/gpu"
    cpu: Quantity | None = None
    memory: Quantity | None = None
    resources: dict[Key, Quantity] = {}
    shm: Quantity = "16Gi"
    ipc_lock: bool = True
    user: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 65532
    restarts: Annotated[int, Meta(ge=0, le=1000)] = 3
    port: Annotated[int, Meta(ge=1024, le=65535)] = PORT
    python: Interpreter = "python"
    setup: str = ""
    environment: Environment = {}
    store_secret: Subdomain | None = None


def read_kubernetes_settings(path: Path | None) -> KubernetesSettings:
    """Return the settings of the user's file.

    Raises:
        Misuse: it cannot be read, lacks a field, or has one that is unknown or not allowed.
    """
    settings = read_settings(path, KubernetesSettings)
    if not settings.image_by_tag and _DIGEST.fullmatch(settings.image) is None:
        raise Misuse(
            f'{path}: image "{settings.image}" has no digest, so its content may change between nodes and nights; write'
            " it as NAME@sha256:..., or set image_by_tag = true"
        )
    for toleration in settings.tolerations:
        if toleration.operator == "Exists" and toleration.value:
            raise Misuse(f"{path}: tolerations: with the operator Exists there is no value; leave it out")
        if toleration.key is None and toleration.operator != "Exists":
            raise Misuse(
                f'{path}: tolerations: without a key the operator is "Exists", which tolerates all; give a key'
            )
    for name in OWN_VARIABLES:
        if name in settings.environment:
            raise Misuse(f"{path}: environment has {name}, which each pod sets itself; leave it out")
    return settings


def check_subdomain(text: str, what: str) -> None:
    """Refuse a text that cannot be an object's name, which may have several parts.

    Raises:
        Misuse: Kubernetes does not accept the name.
    """
    try:
        msgspec.convert(text, Subdomain)
    except msgspec.ValidationError:
        raise Misuse(f'{what} is "{text}"; it may be {_SUBDOMAIN.format(253)}') from None


def name_after(suite: str) -> str:
    """Return the name of a suite's JobSet; no two suites share a name.

    If the suite's name is too long, or has a character that Kubernetes does not accept, the JobSet's name ends in a
    hash of it.
    """
    words = re.sub(r"[^a-z0-9]+", "-", suite.lower()).strip("-")
    name = f"observatory-{words}"
    if words == suite and len(name) <= LONGEST_NAME:
        return name
    ending = f"-{hashlib.sha256(suite.encode()).hexdigest()[:8]}"
    return name[: LONGEST_NAME - len(ending)].rstrip("-") + ending


class PodSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file that the first pod writes for its engine.

    key_file: a file of mode 0600. address, port: this pod's, to which the other pods' agents connect. pods: the pods'
    common name, which a number follows.
    """

    key_file: str
    address: str
    port: int = PORT
    pods: str = "pod"

    def as_toml(self) -> str:
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return "".join(f"{name} = {msgspec.json.encode(value).decode()}\n" for name, value in fields.items())
