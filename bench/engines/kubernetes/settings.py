"""Settings of a suite on Kubernetes: the user's file about its pods, and a pod's file for the engine in it."""

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
"""Of a JobSet: the names of its pods, which end in "-node-0-4095-x7k2p", are those of hosts, too: 63 characters."""
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
"""Its name is also the value of a label."""
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
"""Variables that each pod has by its manifest."""


class Toleration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A taint of nodes on which the pods may run nevertheless."""

    key: Key | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


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
        Misuse: it cannot be read, lacks a field, or has one that is unknown or cannot be.
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
    """Refuse what cannot be the name of an object, which may have several parts.

    Raises:
        Misuse: Kubernetes does not accept the name.
    """
    try:
        msgspec.convert(text, Subdomain)
    except msgspec.ValidationError:
        raise Misuse(f'{what} is "{text}"; it may be {_SUBDOMAIN.format(253)}') from None


def name_after(suite: str) -> str:
    """Return the name of a suite's JobSet; no two suites share a name.

    If the suite's name is too long, or has a character that Kubernetes does not accept, it ends in a hash of the whole.
    """
    words = re.sub(r"[^a-z0-9]+", "-", suite.lower()).strip("-")
    name = f"observatory-{words}"
    if words == suite and len(name) <= LONGEST_NAME:
        return name
    ending = f"-{hashlib.sha256(suite.encode()).hexdigest()[:8]}"
    return name[: LONGEST_NAME - len(ending)].rstrip("-") + ending


class PodSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file that the first pod writes for the engine in it.

    key_file: of mode 0600. address, port: of this pod, to which the other pods' agents connect. pods: the beginning of
    their names; a number follows.
    """

    key_file: str
    address: str
    port: int = PORT
    pods: str = "pod"

    def as_toml(self) -> str:
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return "".join(f"{name} = {msgspec.json.encode(value).decode()}\n" for name, value in fields.items())
