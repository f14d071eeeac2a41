"""Manifests of a suite on Kubernetes: a JobSet, or Kubeflow's TrainJob with its runtime, and what its pods mount.

All pods are one Indexed Job whose completion index is the node's number, so their order and names stay. The first pod
is the runner. Checked against the schemas of JobSet 0.12 and Kubeflow Trainer 2.3; never run on a cluster.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import yaml

from bench.engines.kubernetes.settings import KubernetesSettings, check_subdomain, name_after
from bench.engines.settings_file import setup_lines
from bench.engines.wire.frames import key_line, new_key
from bench.errors import Misuse, plural

Form = Literal["jobset", "trainjob"]
Manifest = dict[str, Any]

RESULTS = "/var/lib/parallel-observatory"
"""Where the volume for results is mounted; the DaemonSet of `observatory serve` mounts its own volume there."""
SECRET_FOLDER = "/etc/parallel-observatory/key"
SUITE_FOLDER = "/etc/parallel-observatory/suite"
OWN_FOLDER = "/run/parallel-observatory"
KEY_ENTRY = "key"
JOB = "node"
"""Name of the replicated job and of its container; Kubeflow's runtimes use the same name."""
FINAL_CODES = (2, 3, 5, 70)
"""Exit codes of `observatory` after which another attempt would end the same way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteJob:
    """A suite to run in pods.

    suite: the suite's name. file: the suite file's text, if the image does not contain it. ranks_per_node: None spreads
    the ranks evenly. words: further arguments of `observatory suite run`, such as --set. key_secret: name of an
    existing Secret; None renders a new one.
    """

    suite: str
    file: str | None
    nodes: int
    ranks_per_node: int | None
    settings: KubernetesSettings
    words: Sequence[str] = ()
    key_secret: str | None = None

    @property
    def name(self) -> str:
        return self.settings.name or name_after(self.suite)

    @property
    def secret(self) -> str:
        """Name of the Secret with the suite's key."""
        return f"{self.name}-key" if self.key_secret is None else self.key_secret

    @property
    def gpus(self) -> int:
        """The number of GPUs per pod.

        Raises:
            Misuse: the number is unknown, or smaller than the number of ranks.
        """
        gpus = self.ranks_per_node if self.settings.gpus is None else self.settings.gpus
        if gpus is None:
            raise Misuse(
                "the number of GPUs per pod is unknown; set gpus = 8 in the engine's file (gpus = 0 for a CPU suite),"
                " or use --ranks-per-node 8"
            )
        if self.ranks_per_node is not None and 0 < gpus < self.ranks_per_node:
            raise Misuse(
                f"--ranks-per-node is {self.ranks_per_node}, but a pod has {plural(gpus, 'GPU')};"
                " NCCL needs one for each rank"
            )
        return gpus


def check_nodes(suite: str, cases: Iterable[tuple[str, int | None]], nodes: int, ranks_per_node: int | None) -> None:
    """Refuse nodes that no case of the suite would use.

    cases: name and number of ranks; None means one per GPU.

    Raises:
        Misuse: no case uses all nodes.
    """
    needs = [(nodes if ranks is None else -(-ranks // (ranks_per_node or 1)), name) for name, ranks in cases]
    most, name = max(needs)
    if most < nodes:
        raise Misuse(
            f"--nodes is {nodes}, but no case of suite {suite} uses more than {most} ({name}); use --nodes {most}, or"
            " give its cases more ranks"
        )


def manifests(job: SuiteJob, form: Form = "jobset") -> list[Manifest]:
    """Return the manifests in the order in which they must be created.

    Unless the job names a Secret, a new Secret has a fresh key. Names come from the settings, or from the suite's name.

    Raises:
        Misuse: the pods' GPUs are unknown or too few, or a name is invalid.
    """
    documents: list[Manifest] = []
    if job.key_secret is None:
        secret = _manifest(job, "v1", "Secret", job.secret)
        documents.append({**secret, "type": "Opaque", "stringData": {KEY_ENTRY: key_line(new_key()).decode()}})
    else:
        check_subdomain(job.key_secret, "--key-secret")
    if job.file is not None:
        config = _manifest(job, "v1", "ConfigMap", f"{job.name}-suite")
        documents.append({**config, "data": {f"{job.suite}.toml": job.file}})
    spec = _jobset_spec(job)
    queue = {} if job.settings.queue is None else {"kueue.x-k8s.io/queue-name": job.settings.queue}
    if form == "jobset":
        jobset = _manifest(job, "jobset.x-k8s.io/v1alpha2", "JobSet", job.name, labels=queue)
        return [*documents, {**jobset, "spec": spec}]
    api = "trainer.kubeflow.org/v1alpha1"
    spec["replicatedJobs"][0]["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"] = (
        "trainer"
    )
    runtime = _manifest(job, api, "TrainingRuntime", job.name, labels={"trainer.kubeflow.org/framework": "plain"})
    runtime["spec"] = {"mlPolicy": {"numNodes": job.nodes}, "template": {"spec": spec}}
    train = _manifest(job, api, "TrainJob", job.name, labels=queue)
    train["spec"] = {
        "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": job.name},
        "trainer": {"image": job.settings.image, "numNodes": job.nodes, "resourcesPerNode": _resources(job)},
    }
    return [*documents, runtime, train]


def as_yaml(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return the manifests as one stream for kubectl, with long texts as blocks."""
    text: str = yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, explicit_start=True, default_flow_style=False, width=120
    )
    return text


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and repeated values without aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent)


def _manifest(job: SuiteJob, api: str, kind: str, name: str, labels: Mapping[str, str] | None = None) -> Manifest:
    metadata: Manifest = {"name": name}
    if job.settings.namespace is not None:
        metadata["namespace"] = job.settings.namespace
    return {"apiVersion": api, "kind": kind, "metadata": {**metadata, "labels": {**_labels(job), **(labels or {})}}}


def _labels(job: SuiteJob) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "parallel-observatory",
        "app.kubernetes.io/component": "suite",
        "app.kubernetes.io/instance": job.name,
    }


def _jobset_spec(job: SuiteJob) -> Manifest:
    """Return the JobSet: one Indexed Job, which succeeds with its first pod.

    A failed pod ends the Job, and the JobSet restarts it: the suite then resumes with the missing cases. An invalid
    suite, or a failed case, ends the JobSet at once.
    """
    final = {"containerName": JOB, "operator": "In", "values": list(FINAL_CODES)}
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": {
            "maxRestarts": job.settings.restarts,
            "rules": [
                {"name": "suiteHasEnded", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]},
            ],
        },
        "replicatedJobs": [
            {
                "name": JOB,
                "replicas": 1,
                "template": {
                    "metadata": {"labels": _labels(job)},
                    "spec": {
                        "completionMode": "Indexed",
                        "completions": job.nodes,
                        "parallelism": job.nodes,
                        "backoffLimit": 0,
                        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": final}]},
                        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
                        "template": {
                            "metadata": {"labels": _labels(job), "annotations": dict(job.settings.annotations)},
                            "spec": _pod(job),
                        },
                    },
                },
            }
        ],
    }


def _pod(job: SuiteJob) -> Manifest:
    settings = job.settings
    is_root = settings.user == 0
    pod: Manifest = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 60,  # The runner stores complete results.
        "securityContext": {
            "runAsNonRoot": not is_root,
            "runAsUser": settings.user,
            "runAsGroup": settings.user,
            "fsGroup": settings.user,  # Lets it read the key and write results.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "labelSelector": {"matchLabels": {"app.kubernetes.io/instance": job.name}},
                        "topologyKey": "kubernetes.io/hostname",
                    }
                ]
            }
        },
        "containers": [_container(job)],
        "volumes": _volumes(job),
    }
    tolerations: list[dict[str, str]] = [msgspec.to_builtins(toleration) for toleration in settings.tolerations]
    if job.gpus:
        tolerations.insert(0, {"key": settings.gpu_resource, "operator": "Exists", "effect": "NoSchedule"})
    if tolerations:
        pod["tolerations"] = tolerations
    if settings.host_network:
        pod |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if settings.node_selector:
        pod["nodeSelector"] = dict(settings.node_selector)
    if settings.pull_secret is not None:
        pod["imagePullSecrets"] = [{"name": settings.pull_secret}]
    for field, value in (
        ("priorityClassName", settings.priority_class),
        ("runtimeClassName", settings.runtime_class),
    ):
        if value is not None:
            pod[field] = value
    return pod


def _container(job: SuiteJob) -> Manifest:
    settings = job.settings
    environment: list[Manifest] = [
        {"name": "HOME", "value": "/tmp"},
        {"name": "POD_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {
            "name": "JOBSET_UID",
            "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['jobset.sigs.k8s.io/jobset-uid']"}},
        },
        {"name": "OBSERVATORY_IMAGE", "value": settings.image},
        *({"name": name, "value": value} for name, value in settings.environment.items()),
    ]
    if settings.store_secret is not None:
        url = {"secretKeyRef": {"name": settings.store_secret, "key": "url"}}
        environment.append({"name": "OBSERVATORY_STORE", "valueFrom": url})
    capabilities: Manifest = {"drop": ["ALL"]}
    if settings.ipc_lock:
        capabilities["add"] = ["IPC_LOCK"]  # RDMA pins memory.
    mounts = [
        {"name": "results", "mountPath": RESULTS},
        {"name": "key", "mountPath": SECRET_FOLDER, "readOnly": True},
        {"name": "own", "mountPath": OWN_FOLDER},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    if job.file is not None:
        mounts.append({"name": "suite", "mountPath": SUITE_FOLDER, "readOnly": True})
    return {
        "name": JOB,
        "image": settings.image,
        "command": ["sh", "-c", command(job)],
        "env": environment,
        "ports": [{"name": "agents", "containerPort": settings.port}],
        "resources": _resources(job),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "capabilities": capabilities,
        },
        "volumeMounts": mounts,
    }


def command(job: SuiteJob) -> str:
    """Return the shell lines that each pod runs."""
    settings = job.settings
    python = shlex.quote(settings.python)
    missing = shlex.quote(
        f"the image {settings.image} has no {settings.python} with the package parallel-observatory; build it with"
        ' dashboards/stack/Dockerfile, or name its interpreter in the engine\'s file: python = "..."'
    )
    suite = job.suite if job.file is None else f"{SUITE_FOLDER}/{job.suite}.toml"
    words = [suite, *job.words, "--nodes", str(job.nodes), "--port", "0"]
    if job.ranks_per_node is not None:
        words += ["--ranks-per-node", str(job.ranks_per_node)]
    if settings.store_secret is None:
        words += ["--store", f"sqlite:///{RESULTS}/history.sqlite"]
    first = f"{job.name}-{JOB}-0-0.{job.name}:{settings.port}"
    lines = [
        f"exec {python} -P -m bench.engines.kubernetes.pod",
        '--node "$JOB_COMPLETION_INDEX" --address "$POD_ADDRESS" --job "$JOBSET_UID"',
        shlex.join(["--connect", first, "--secret", f"{SECRET_FOLDER}/{KEY_ENTRY}", "--own", OWN_FOLDER]),
        shlex.join(["--suite", job.suite, "--runs", f"{RESULTS}/runs"]),
        f"-- {shlex.join(words)}",
    ]
    return "\n".join(
        [
            *(setup_lines(settings.setup) if settings.setup else []),
            f"{python} -P -c 'import bench.engines.kubernetes.pod' 2>/dev/null || {{ echo {missing} >&2; exit 2; }}",
            " \\\n  ".join(lines) + "\n",
        ]
    )


def _resources(job: SuiteJob) -> dict[str, dict[str, str]]:
    """Return a pod's requests and limits. Devices such as GPUs must also be limits, and memory is one too."""
    settings = job.settings
    devices = dict(settings.resources)
    if job.gpus:
        devices[settings.gpu_resource] = str(job.gpus)
    memory = {} if settings.memory is None else {"memory": settings.memory}
    cpu = {} if settings.cpu is None else {"cpu": settings.cpu}
    return {"requests": {**cpu, **memory, **devices}, "limits": {**memory, **devices}}


def _volumes(job: SuiteJob) -> list[Manifest]:
    # Kubelet gives the Secret's file to root and the pod's group; the pod copies it to a file that only its user can
    # read.
    key = {"secretName": job.secret, "defaultMode": 0o440, "items": [{"key": KEY_ENTRY, "path": KEY_ENTRY}]}
    volumes: list[Manifest] = [
        {"name": "results", "persistentVolumeClaim": {"claimName": job.settings.claim}},
        {"name": "key", "secret": key},
        {"name": "own", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": job.settings.shm}},
        {"name": "tmp", "emptyDir": {}},
    ]
    if job.file is not None:
        volumes.append({"name": "suite", "configMap": {"name": f"{job.name}-suite"}})
    return volumes
