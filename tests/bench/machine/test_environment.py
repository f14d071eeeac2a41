"""What of the environment is kept, and that no secret is."""

from __future__ import annotations

import pytest

from bench.machine.machine import REDACTED, redact, relevant


def test_only_what_can_change_a_measurement_is_kept() -> None:
    environment = {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "4", "SLURM_JOB_ID": "7", "HOME": "/root", "EDITOR": "vi"}
    assert relevant(environment) == {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "4", "SLURM_JOB_ID": "7"}


@pytest.mark.parametrize(
    "name",
    [
        *("TORCH_HUB_TOKEN", "NCCL_SECRET", "CUDA_PASSWORD", "MKL_API_KEY", "NVIDIA_CREDENTIALS", "TORCH_token"),
        *("NCCL_AUTH", "NCCL_AUTHORIZATION", "UCX_PASS", "UCX_PASSPHRASE", "FI_PWD", "TORCH_HUB_PAT", "TORCH_PATS_2"),
        *("GLOO_CRED", "NVIDIA_COOKIE", "TORCH_SIG", "TORCH_SIGNATURE"),
        *("TORCH_LOGIN", "TORCH_PW", "UCX_PW_2", "FI_PWDS", "NCCL_DBPWD", "NCCL_LOGINS", "NCCL_login"),
    ],
)
def test_a_secret_keeps_its_name_only(name: str) -> None:
    assert relevant({name: "hunter2"}) == {name: REDACTED}


@pytest.mark.parametrize("name", ["NCCL_PWDX", "NCCL_PWM", "UCX_LOGINTERVAL", "TORCH_PATTERN", "NCCL_BYPASSED"])
def test_a_name_that_only_contains_such_letters_is_a_settings(name: str) -> None:
    assert relevant({name: "1"}) == {name: "1"}


@pytest.mark.parametrize(
    "value",
    [
        "http://user:hunter2@proxy:80",
        "https://hunter2@host/path",
        "tcp://user:p@hunter2@host",
        "https://host/?token=hunter2&x=1",
        "https://host/?x=1&auth=hunter2",
        "https://host/?sig=hunter2",
        "socks5://a:b@c,http://d:hunter2@e",
    ],
)
def test_an_address_loses_who_and_by_which_password(value: str) -> None:
    kept = relevant({"TORCH_MIRROR": value})["TORCH_MIRROR"]
    assert "hunter2" not in kept
    assert REDACTED in kept


@pytest.mark.parametrize(
    "value",
    [
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.TVA",
        "0123456789abcdef0123456789abcdef",
        "it$a!secret",
        "user:S3cretPw0rd",
        "ghp_A1b2C3d4E5f6",
        "A1b2C3d4E5f6G7h8-I9j0K1l2M3n4O5p6",
        "aB3-dE5-gH7",
        "S3cretPw",
        "two\nlines",
        "\x1b[31mred",
        "x" * 33,
        "-----BEGIN PRIVATE KEY----- MIIEvQIBADANBgkqhkiG9w0BAQEFAASC",
    ],
)
def test_a_value_that_has_no_form_of_a_setting_is_hidden(value: str) -> None:
    assert relevant({"TORCH_EXTRA": value}) == {"TORCH_EXTRA": REDACTED}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_TOPO_FILE_PATH", "/opt/spack/cuda-12.4-abcdefghijklmnopqrstuvwxyz123456/topo.xml"),
        ("NCCL_SOCKET_IFNAME", "^lo,docker0,enp175s0f0np0"),
        ("NCCL_ALGO", "allreduce:ring,CollnetDirect;broadcast:ring"),
        ("NCCL_PROTO", "LL,LL128,Simple"),
        ("NCCL_DEBUG_FILE", "/tmp/nccl.%h.%p"),
        ("UCX_NET_DEVICES", "mlx5_0:1,mlx5_bond_0:1"),
        ("CUDA_VISIBLE_DEVICES", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,MIG-6ef8ad14-2b2f-5f6f-8d76-6f2a3ea4d5d6"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:128,garbage_collection_threshold:0.6"),
        ("TORCH_CUDA_ARCH_LIST", "8.0;9.0+PTX"),
        ("TORCH_LOGS", "+dynamo,-inductor"),
        ("NVIDIA_REQUIRE_CUDA", "cuda>=12.4 brand=tesla,driver>=470,driver<471"),
        ("OMP_PLACES", "{0:4}:4:1"),
        ("KMP_AFFINITY", "granularity=fine,compact,1,0"),
        ("SLURM_JOB_NODELIST", "ip-10-0-1-7,gpu-a100-[001-128]"),
        ("TORCH_DISTRIBUTED_DEBUG", ""),
        ("NCCL_SOCKET_IFNAME", "^docker0,lo"),
        ("NCCL_IB_HCA", "mlx5_0:1,mlx5_1:1"),
        ("NCCL_ALGO", "Ring,Tree"),
        ("NCCL_TOPO_FILE", "/opt/nccl/Topo8xH100.xml"),
        ("NCCL_DEBUG_SUBSYS", "INIT,NET"),
        ("NCCL_NET_GDR_LEVEL", "SYS"),
        ("NCCL_CROSS_NIC", "AUTO"),
        ("NCCL_PROTO", "LL128"),
        ("NCCL_NET", "IBext_v8"),
        ("SLURM_JOB_PARTITION", "gpuA100x4"),
    ],
)
def test_a_setting_is_kept_whole(name: str, value: str) -> None:
    assert relevant({name: value}) == {name: value}


def test_an_address_without_secrets_is_kept_whole() -> None:
    value = "https://host:80/path?x=1"
    assert relevant({"TORCH_MIRROR": value}) == {"TORCH_MIRROR": value}


def test_arguments_lose_the_password_of_a_store_and_nothing_else() -> None:
    arguments = "run ddp --store postgresql://user:hunter2@host/name --ranks=2"
    assert redact(arguments) == f"run ddp --store postgresql://{REDACTED}@host/name --ranks=2"
