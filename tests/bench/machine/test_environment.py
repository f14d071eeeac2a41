"""What of the environment is kept, and that no secret is."""

from __future__ import annotations

import pytest

from bench.machine.machine import REDACTED, redact, relevant


def test_only_what_can_change_a_measurement_is_kept() -> None:
    environment = {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "4", "SLURM_JOB_ID": "7", "HOME": "/root", "EDITOR": "vi"}
    assert relevant(environment) == {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "4", "SLURM_JOB_ID": "7"}


@pytest.mark.parametrize(
    "name", ["TORCH_HUB_TOKEN", "NCCL_SECRET", "CUDA_PASSWORD", "MKL_API_KEY", "NVIDIA_CREDENTIALS", "TORCH_token"]
)
def test_a_secret_keeps_its_name_only(name: str) -> None:
    assert relevant({name: "hunter2"}) == {name: REDACTED}


@pytest.mark.parametrize(
    "value",
    [
        "http://user:hunter2@proxy:80",
        "https://hunter2@host/path",
        "tcp://user:p@hunter2@host",
        "https://host/?token=hunter2&x=1",
        "socks5://a:b@c,http://d:hunter2@e",
    ],
)
def test_an_address_loses_who_and_by_which_password(value: str) -> None:
    kept = relevant({"TORCH_MIRROR": value})["TORCH_MIRROR"]
    assert "hunter2" not in kept
    assert REDACTED in kept


def test_an_address_without_secrets_is_kept_whole() -> None:
    value = "https://host:80/path?x=1"
    assert relevant({"TORCH_MIRROR": value}) == {"TORCH_MIRROR": value}


def test_arguments_lose_the_password_of_a_store_and_nothing_else() -> None:
    arguments = "run ddp --store postgresql://user:hunter2@host/name --ranks=2"
    assert redact(arguments) == f"run ddp --store postgresql://{REDACTED}@host/name --ranks=2"
