"""The manifests of a suite: valid by the CRDs' schemas, and with what a rank on a GPU needs and no more."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml

from bench.cli import main
from bench.cli.suite.command import command
from bench.engines.kubernetes.manifests import SuiteJob, as_yaml, manifests
from bench.engines.kubernetes.settings import (
    JobSetName,
    KubernetesSettings,
    Toleration,
    read_kubernetes_settings,
)
from bench.engines.wire.frames import write_key
from bench.errors import CASE_FAILED, FINE, INFRASTRUCTURE, INTERRUPTED, MISUSE, OUR_BUG
from tests.bench.engines.kubernetes.schemas import schema_of, validate

IMAGE = f"registry.example/parallel-observatory@sha256:{'0' * 64}"
FULL = KubernetesSettings(
    image=IMAGE,
    claim="results",
    name="night",
    namespace="training",
    queue="research",
    priority_class="low",
    runtime_class="nvidia",
    node_selector={"gpu": "h200"},
    tolerations=(Toleration(key="spot", operator="Exists"),),
    annotations={"k8s.v1.cni.cncf.io/networks": "rdma"},
    pull_secret="registry",
    host_network=True,
    gpus=8,
    cpu="64",
    memory="500Gi",
    resources={"rdma/hca": "8"},
    environment={"NCCL_SOCKET_IFNAME": "eth0"},
    setup="ulimit -l unlimited",
    store_secret="history",
)
JOB = SuiteJob(suite="night", file=None, nodes=4, ranks_per_node=8, settings=FULL, words=["--set", "defaults.trials=5"])


def _kinds(job: SuiteJob, form: Any = "jobset") -> dict[str, dict[str, Any]]:
    text = as_yaml(manifests(job, form))
    documents = list(yaml.safe_load_all(text))
    assert documents == list(yaml.safe_load_all(as_yaml(documents)))
    return {document["kind"]: document for document in documents}


def _replicated(job: SuiteJob) -> dict[str, Any]:
    (one,) = _kinds(job)["JobSet"]["spec"]["replicatedJobs"]
    found: dict[str, Any] = one["template"]["spec"]
    return found


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    found: dict[str, Any] = _replicated(JOB)["template"]["spec"]
    return found


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod["containers"]
    one: dict[str, Any] = found
    return one


@pytest.fixture(scope="module")
def jobset_schema() -> dict[str, Any]:
    return schema_of("jobset_crd_v0.12.0.yaml")


PLAIN = dataclasses.replace(JOB, settings=KubernetesSettings(image=IMAGE, claim="results", gpus=0), file="text: 1\n")


@pytest.mark.parametrize("job", [JOB, PLAIN], ids=["all settings", "none but those needed"])
def test_the_job_set_is_valid(job: SuiteJob, jobset_schema: dict[str, Any]) -> None:
    validate(_kinds(job)["JobSet"], jobset_schema)


def test_the_schema_refuses_what_is_misspelt(jobset_schema: dict[str, Any]) -> None:
    wrong = _kinds(JOB)["JobSet"]
    wrong["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["volumes"][0]["persistentVolume"] = {}
    with pytest.raises(jsonschema.ValidationError, match="persistentVolume"):
        validate(wrong, jobset_schema)


@pytest.mark.parametrize("job", [JOB, PLAIN], ids=["all settings", "none but those needed"])
def test_the_train_job_and_its_runtime_are_valid(job: SuiteJob, jobset_schema: dict[str, Any]) -> None:
    kinds = _kinds(job, "trainjob")
    validate(kinds["TrainJob"], schema_of("trainjob_crd_v2.3.0.yaml"))
    runtime = kinds["TrainingRuntime"]
    assert set(runtime["spec"]) == {"mlPolicy", "template"}
    validate(runtime["spec"]["template"]["spec"], jobset_schema["properties"]["spec"])


def test_a_train_job_makes_the_same_job_set() -> None:
    kinds = _kinds(JOB, "trainjob")
    assert kinds["TrainJob"]["spec"]["runtimeRef"]["name"] == kinds["TrainingRuntime"]["metadata"]["name"] == "night"
    assert kinds["TrainJob"]["spec"]["trainer"]["numNodes"] == 4
    spec = kinds["TrainingRuntime"]["spec"]["template"]["spec"]
    label = spec["replicatedJobs"][0]["template"]["metadata"]["labels"].pop(
        "trainer.kubeflow.org/trainjob-ancestor-step"
    )
    assert label == "trainer"
    assert spec == _kinds(JOB)["JobSet"]["spec"]


def test_each_pod_is_a_node_by_its_index() -> None:
    job = _replicated(JOB)
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 4, 4)
    assert job["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
    (affinity,) = job["template"]["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert affinity["topologyKey"] == "kubernetes.io/hostname"
    labels = job["template"]["metadata"]["labels"]
    assert affinity["labelSelector"]["matchLabels"].items() <= labels.items()


def test_a_failed_case_ends_the_job_set_and_a_lost_node_begins_it_again() -> None:
    (rule,) = _replicated(JOB)["podFailurePolicy"]["rules"]
    final = {MISUSE, CASE_FAILED, OUR_BUG}
    assert rule["action"] == "FailJob"
    assert final <= set(rule["onExitCodes"]["values"])
    assert not {FINE, INFRASTRUCTURE, INTERRUPTED} & set(rule["onExitCodes"]["values"])
    policy = _kinds(JOB)["JobSet"]["spec"]["failurePolicy"]
    assert policy["maxRestarts"] == 3
    assert policy["rules"][0]["action"] == "FailJobSet"
    assert policy["rules"][0]["onJobFailureReasons"] == ["PodFailurePolicy"]


def test_kueue_queues_what_it_can_suspend() -> None:
    assert _kinds(JOB)["JobSet"]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert _kinds(JOB, "trainjob")["TrainJob"]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"


def test_a_pod_has_what_ranks_need(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert container["image"] == IMAGE
    assert container["resources"]["limits"] == {"memory": "500Gi", "rdma/hca": "8", "nvidia.com/gpu": "8"}
    assert container["resources"]["requests"]["cpu"] == "64"
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert mounts["/dev/shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    assert mounts["/var/lib/parallel-observatory"]["persistentVolumeClaim"] == {"claimName": "results"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert {"name": "NCCL_SOCKET_IFNAME", "value": "eth0"} in container["env"]


def test_a_pod_may_speak_to_no_api_and_become_nobody_else(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsUser"] == 65532
    context = container["securityContext"]
    assert (context["allowPrivilegeEscalation"], context["privileged"]) == (False, False)
    assert context["readOnlyRootFilesystem"] is True


def test_the_key_stands_in_the_secret_alone(tmp_path: Path) -> None:
    kinds = _kinds(JOB)
    key = kinds["Secret"]["stringData"]["key"]
    write_key(tmp_path / "key", bytes.fromhex(key))
    assert (tmp_path / "key").read_text() == key
    assert key.strip() not in json.dumps([kind for name, kind in kinds.items() if name != "Secret"])
    assert _kinds(JOB)["Secret"]["stringData"]["key"] != key
    named = _kinds(dataclasses.replace(JOB, key_secret="mine"))
    assert "Secret" not in named
    volumes = named["JobSet"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["volumes"]
    assert [volume["secret"]["secretName"] for volume in volumes if "secret" in volume] == ["mine"]


def test_the_command_is_one_of_suite_run(container: dict[str, Any]) -> None:
    words = container["command"][2].rpartition(" -- ")[2].split()
    run = command.commands["run"]
    asked = run.make_context("run", [*words, "--engine", "kubernetes"]).params
    assert (asked["suite_name"], asked["nodes"], asked["ranks_per_node"]) == ("night", 4, 8)
    assert asked["settings"] == ("defaults.trials=5",)
    assert asked["store_url"] is None  # From the environment, by a Secret.
    (store,) = [one for one in container["env"] if one["name"] == "OBSERVATORY_STORE"]
    assert store["valueFrom"] == {"secretKeyRef": {"name": "history", "key": "url"}}


def test_a_setup_that_fails_ends_the_pod_with_what_it_printed() -> None:
    job = dataclasses.replace(JOB, settings=msgspec.structs.replace(FULL, setup="echo no such limit >&2\nfalse\n"))
    (container,) = _replicated(job)["template"]["spec"]["containers"]
    done = subprocess.run(container["command"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()) == (1, ["no such limit", "setup failed with code 1"])


# The command


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A file with what is needed."""
    (tmp_path / "kubernetes.toml").write_text(f'image = "{IMAGE}"\nclaim = "results"\n')
    return tmp_path / "kubernetes.toml"


def _render(*words: str | Path) -> int:
    return main.run(["suite", "render", *map(str, words)])


def test_a_shipped_suite_is_named_and_a_file_goes_with_it(
    settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _render("smoke", "--nodes=2", "--ranks-per-node=2", "--engine-file", settings) == 0
    kinds = {one["kind"]: one for one in yaml.safe_load_all(capsys.readouterr().out)}
    assert set(kinds) == {"Secret", "JobSet"}
    assert kinds["JobSet"]["metadata"]["name"] == "observatory-smoke"
    own = tmp_path / "my_own.toml"
    own.write_text("# mine\nschema_version = 1\n[case.ddp]\nranks = 4\n")
    words: list[str | Path] = [
        "--nodes=2",
        "--ranks-per-node=2",
        "--budget=2h",
        "--only=all",
        "--engine-file",
        settings,
    ]
    assert _render(own, *words) == 0
    kinds = {one["kind"]: one for one in yaml.safe_load_all(capsys.readouterr().out)}
    assert kinds["ConfigMap"]["data"] == {"my_own.toml": own.read_text()}
    lines = kinds["JobSet"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0][
        "command"
    ]
    assert "-- /etc/parallel-observatory/suite/my_own.toml --only all --budget 7200s --nodes 2" in lines[2]


@pytest.mark.parametrize(
    "names",
    [
        ["nightly-llama-70b-h200-fsdp-tp8-pp4-a", "nightly-llama-70b-h200-fsdp-tp8-pp4-b"],  # They share 36 letters.
        ["night_a", "night-a", "Night-a", "night--a", "_night-a", "night-a-"],
        ["a" * 28, "a" * 29, "a" * 60],
        ["_", "__", "-"],  # No letter that Kubernetes takes.
    ],
)
def test_no_two_suites_render_to_the_same_objects(names: list[str], jobset_schema: dict[str, Any]) -> None:
    objects: set[tuple[str, str]] = set()
    for name in names:
        kinds = _kinds(dataclasses.replace(PLAIN, suite=name))
        validate(kinds["JobSet"], jobset_schema)
        objects |= {(kind, document["metadata"]["name"]) for kind, document in kinds.items()}
        assert msgspec.convert(kinds["JobSet"]["metadata"]["name"], JobSetName)
    assert len(objects) == 3 * len(names)


def test_the_examples_of_help_and_of_the_page_render(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[4] / "docs" / "clusters" / "kubernetes.md"
    assert command.commands["render"].help is not None
    text = page.read_text() + str(command.commands["render"].help)
    text = re.sub(r" \\\n +", " ", text)  # One example goes on in a second line.
    examples = re.findall(r"^ +observatory suite render (.*?)(?: --output .*)?$", text, re.MULTILINE)
    assert len(examples) == 2
    for example in examples:
        words = [str(settings) if word == "kubernetes.toml" else word for word in example.split()]
        assert _render(*words) == 0
        assert "kind: JobSet" in capsys.readouterr().out


def test_the_toml_of_the_page_is_one_of_settings(tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "docs" / "clusters" / "kubernetes.md").read_text()
    (text,) = (one for one in re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if "claim" in one)
    (tmp_path / "kubernetes.toml").write_text(text.replace("sha256:...", f"sha256:{'0' * 64}"))
    found = read_kubernetes_settings(tmp_path / "kubernetes.toml")
    assert (found.gpus, found.resources) == (8, {"rdma/hca": "8"})
    named = {field for field in KubernetesSettings.__struct_fields__ if re.search(rf"\b{field}\b", page)}
    assert named == set(KubernetesSettings.__struct_fields__)


def test_a_file_with_a_key_is_its_owner_s_alone(settings: Path, tmp_path: Path) -> None:
    out = tmp_path / "suite.yaml"
    out.write_text("old")
    out.chmod(0o644)
    assert _render("smoke", "--ranks-per-node=4", "--engine-file", settings, "--output", out) == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert "kind: JobSet" in out.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kubernetes.toml", "suite.yaml"]


def test_a_pipe_is_written_into_and_stays(settings: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "suite.yaml"
    os.mkfifo(pipe)
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)) as reader:
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 20)  # Room for all of it.
        assert _render("smoke", "--ranks-per-node=4", "--engine-file", settings, "--output", pipe) == 0
        assert "kind: JobSet" in reader.read()
    assert pipe.is_fifo()


def test_a_pipe_that_nobody_reads_is_refused(
    settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert _render("smoke", "--ranks-per-node=4", "--engine-file", settings, "--output", tmp_path / "pipe") == 4
    assert "pipe cannot be written: nobody reads this pipe" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('imag = "x"', "unknown key 'imag'; did you mean 'image'?"),
        ('image = "x:1"', 'image "x:1" has no digest'),
        ('image = ""\nimage_by_tag = true', 'image is ""; it may be the name of an image'),
        ('image = "a b"\nimage_by_tag = true', 'image is "a b"; it may be the name of an image'),
        (
            'image = "x"\nimage_by_tag = true\nclaim = "My Volume"',
            'claim is "My Volume"; it may be a name of small letters',
        ),
        ("gpus = -1", "gpus is -1; it may be a whole number of at least 0 and at most 1,024"),
        ('gpus = "8"', 'gpus is "8"; it may be a whole number'),
        ('shm = "much"', 'shm is "much"; it may be a quantity of Kubernetes, for example 8, 500m or 64Gi'),
        (f'name = "{"n" * 41}"', "of at most 40 characters"),
        ('namespace = "team.high"', 'namespace is "team.high"; it may be a name of small letters'),
        ('priority_class = "team..high"', 'priority_class is "team..high"; it may be a name of small letters'),
        ('resources = {"rdma/hca" = "many"}', 'resources."rdma/hca" is "many"; it may be a quantity'),
        ('resources = {"rdma hca" = "1"}', 'resources has the key "rdma hca"; it may be a key of Kubernetes'),
        ('gpu_resource = "Nvidia.com/gpu/"', 'gpu_resource is "Nvidia.com/gpu/"; it may be a key of Kubernetes'),
        ('node_selector = {"a b" = "c"}', 'node_selector has the key "a b"; it may be a key'),
        ('node_selector = {a = "b c"}', 'node_selector.a is "b c"; it may be the value of a label'),
        ('annotations = {"-a" = "b"}', 'annotations has the key "-a"; it may be a key'),
        ('tolerations = [{operator = "Maybe"}]', 'tolerations[0].operator is "Maybe"; it may be Equal or Exists'),
        ('tolerations = [{kee = "x"}]', "unknown key 'tolerations[0].kee'; did you mean 'key'?"),
        (
            'tolerations = [{key = "a", effect = "No"}]',
            'tolerations[0].effect is "No"; it may be NoExecute, NoSch',
        ),
        ('tolerations = [{key = "a", operator = "Exists", value = "b"}]', "with the operator Exists there is no value"),
        ('tolerations = [{value = "x"}]', 'tolerations: without a key the operator is "Exists"'),
        ('environment = {HOME = "/"}', "environment has HOME, which each pod sets itself"),
        ('environment = {POD_ADDRESS = "1"}', "environment has POD_ADDRESS, which each pod sets itself"),
        ('python = ""', 'python is ""; it may be the path of an interpreter'),
    ],
)
def test_an_engine_file_that_cannot_be_is_refused_in_one_line(
    line: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kubernetes.toml"
    rest = {"image": f'image = "{IMAGE}"\n', "claim": 'claim = "results"\n'}
    path.write_text("".join(text for name, text in rest.items() if f"{name} =" not in line) + line + "\n")
    assert _render("smoke", "--ranks-per-node=4", "--engine-file", path) == 2
    told = capsys.readouterr()
    assert told.out == ""
    (only,) = told.err.splitlines()
    assert only.startswith(f"observatory: {path}: ")
    assert said in only


def test_names_of_objects_may_have_several_parts(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {"priority_class": "team.high", "pull_secret": "registry.example", "store_secret": "9.night"}
    text = "".join(f'{field} = "{name}"\n' for field, name in names.items())
    settings.write_text(settings.read_text().replace('"results"', '"results.of.nights"') + text)
    assert _render("smoke", "--ranks-per-node=4", "--key-secret=suite.key", "--engine-file", settings) == 0
    out = capsys.readouterr().out
    assert all(f": {name}\n" in out for name in (*names.values(), "results.of.nights", "suite.key"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set=case.ddp.ranks=0", "--ranks-per-node=4"], "case.ddp.ranks is 0"),
        (["--ranks-per-node=4", "--only=nosuchtag"], 'no case has the tag "nosuchtag"'),
    ],
)
def test_what_the_pods_would_refuse_is_refused(
    words: list[str], said: str, settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _render("smoke", *words, "--engine-file", settings) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert said in told.err


def test_a_suite_of_which_no_case_has_room_is_refused(
    settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.toml").write_text("schema_version = 1\n[case.ddp]\nranks = 4\n")
    assert _render(tmp_path / "own.toml", "--ranks-per-node=2", "--engine-file", settings) == 2
    assert "no case of suite own can run in these pods: ddp: ranks is 4, but nodes 1" in capsys.readouterr().err


def test_cases_for_which_the_pods_have_no_room_are_told(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _render("smoke", "--ranks-per-node=2", "--engine-file", settings) == 0
    told = capsys.readouterr()
    assert "kind: JobSet" in told.out
    (line,) = told.err.splitlines()
    assert re.search(
        r"\d+ of \d+ cases cannot run in these pods, and will be skipped: \w+: ranks is 4, but nodes 1", line
    )


def test_each_setting_reaches_a_manifest() -> None:
    """But for the one that only judges another."""
    others: dict[type, Any] = {str: "other", int: 64, dict: {"other": "1"}, tuple: ({"key": "other"},)}
    own = {"ipc_lock": False, "user": 0, "host_network": False}
    plain = dataclasses.replace(JOB, key_secret="k")
    for field in set(KubernetesSettings.__struct_fields__) - {"image_by_tag"}:
        value = own[field] if field in own else others[type(getattr(FULL, field))]
        changed = dataclasses.replace(plain, settings=msgspec.structs.replace(FULL, **{field: value}))
        assert as_yaml(manifests(changed)) != as_yaml(manifests(plain)), field
