"""Settings of a suite on Kubernetes: the user's file about its pods, and a pod's file for the engine in it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from bench.engines.settings_file import read_settings
from bench.errors import Misuse

PORT = 9475
"""The port at which the runner in the first pod waits for agents."""
LONGEST_NAME = 40
"""Longest name of a JobSet: its pods' names, which end in "-node-0-4095-x7k2p", are host names of 63 characters."""
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DIGEST = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?")
_WORD = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
LONGEST_SUBDOMAIN = 253
_TOLERATION: Mapping[str, tuple[str, ...]] = {
    "key": (),
    "operator": ("Exists", "Equal"),
    "value": (),
    "effect": ("NoSchedule", "PreferNoSchedule", "NoExecute"),
}
"""Fields of a toleration, and the allowed values of each; empty: any text."""
OWN_VARIABLES = ("HOME", "POD_ADDRESS", "JOBSET_UID", "OBSERVATORY_IMAGE", "OBSERVATORY_STORE")
"""Variables that each pod has by its manifest."""


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
            f'{path}: image "{settings.image}" has no digest, so its content may change between nodes and nights; write'
            " it as NAME@sha256:..., or set image_by_tag = true"
        )
    if not settings.image or any(letter.isspace() for letter in settings.image):
        raise Misuse(f'{path}: image "{settings.image}" names no image; write it as NAME@sha256:...')
    for field in ("name", "namespace"):
        if (value := getattr(settings, field)) is not None:
            check_name(value, f"{path}: {field}", longest=LONGEST_NAME if field == "name" else 63)
    for field in ("claim", "queue", "priority_class", "runtime_class", "pull_secret", "store_secret"):
        if (value := getattr(settings, field)) is not None:
            check_subdomain(value, f"{path}: {field}", longest=63 if field == "queue" else LONGEST_SUBDOMAIN)
    amounts = {"cpu": settings.cpu, "memory": settings.memory, "shm": settings.shm}
    amounts |= {f"resources: {name}": value for name, value in settings.resources.items()}
    for field, value in amounts.items():
        if value is not None and _QUANTITY.fullmatch(value) is None:
            raise Misuse(f'{path}: {field} "{value}" is not a Kubernetes quantity; for example 8, 500m or 64Gi')
    _check_keys(settings, path)
    for toleration in settings.tolerations:
        _check_toleration(toleration, path)
    for name in OWN_VARIABLES:
        if name in settings.environment:
            raise Misuse(f"{path}: environment has {name}, which each pod sets itself; leave it out")
    limits = {"gpus": (0, 1024), "user": (0, 2**31 - 1), "restarts": (0, 1000), "port": (1024, 65535)}
    for field, (least, most) in limits.items():
        if (number := getattr(settings, field)) is not None and not least <= number <= most:
            raise Misuse(f"{path}: {field} is {number}; it may be {least} to {most}")
    return settings


def _check_keys(settings: KubernetesSettings, path: Path | None) -> None:
    """Refuse keys and values of labels that Kubernetes does not accept.

    Raises:
        Misuse: there is one.
    """
    keys: dict[str, tuple[str, ...]] = {"gpu_resource": (settings.gpu_resource,)}
    keys |= {field: tuple(getattr(settings, field)) for field in ("node_selector", "annotations", "resources")}
    keys["tolerations"] = tuple(toleration["key"] for toleration in settings.tolerations if "key" in toleration)
    for field, names in keys.items():
        for key in names:
            prefix, slash, name = key.rpartition("/")
            if _WORD.fullmatch(name) is None or (slash and _SUBDOMAIN.fullmatch(prefix) is None):
                raise Misuse(f'{path}: {field}: "{key}" is not a valid key in Kubernetes; for example example.com/gpu')
    for key, value in settings.node_selector.items():
        if value and _WORD.fullmatch(value) is None:
            raise Misuse(
                f'{path}: node_selector: {key} "{value}" is not a valid label value; use at most 63 letters, digits and'
                ' "-_."'
            )


def _check_toleration(toleration: Mapping[str, str], path: Path | None) -> None:
    """Refuse a toleration that Kubernetes does not accept.

    Raises:
        Misuse: it has an unknown field or value, or fields that do not go together.
    """
    for field, value in toleration.items():
        if field not in _TOLERATION:
            raise Misuse(f'{path}: tolerations: the field "{field}" is unknown; it may be {", ".join(_TOLERATION)}')
        if (allowed := _TOLERATION[field]) and value not in allowed:
            raise Misuse(f'{path}: tolerations: {field} is "{value}"; it may be {", ".join(allowed)}')
    if toleration.get("operator") == "Exists" and toleration.get("value"):
        raise Misuse(f"{path}: tolerations: the operator Exists takes no value; leave it out")
    if "key" not in toleration and toleration.get("operator") != "Exists":
        raise Misuse(
            f'{path}: tolerations: without a key the operator must be "Exists", which tolerates all; add a key'
        )


def check_subdomain(text: str, what: str, *, longest: int = LONGEST_SUBDOMAIN) -> None:
    """Refuse an invalid name of an object, which may have several parts.

    Raises:
        Misuse: Kubernetes does not accept the name.
    """
    if _SUBDOMAIN.fullmatch(text) is None or len(text) > longest:
        raise Misuse(
            f'{what} "{text}" is not a valid name in Kubernetes; use lower-case letters, digits, "-" and ".", begin and'
            f" end with a letter or digit, and use at most {longest} characters"
        )


def check_name(text: str, what: str, *, longest: int = 63) -> str:
    """Return the text if it is a valid name in Kubernetes.

    Raises:
        Misuse: Kubernetes does not accept the name.
    """
    if _LABEL.fullmatch(text) is None or len(text) > longest:
        raise Misuse(
            f'{what} "{text}" is not a valid name in Kubernetes; use lower-case letters, digits and "-", begin with a'
            f" letter, and use at most {longest} characters"
        )
    return text


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
        """Return the file's text."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return "".join(f"{name} = {msgspec.json.encode(value).decode()}\n" for name, value in fields.items())
