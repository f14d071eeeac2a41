"""A rank computes fp32 in fp32, whatever the environment asks torch for, and says where that was otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SWITCH = """
import json, warnings
warnings.simplefilter("error")
import torch
from bench.rank.distributed import switch_tf32_off
told = [switch_tf32_off(), switch_tf32_off()]
matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
print(json.dumps({
    "told": told,
    "old": [matmul.allow_tf32, cudnn.allow_tf32],
    "new": [matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision],
    "of_products": torch.get_float32_matmul_precision(),
}))
"""
"""In a process of its own: torch reads the environment once."""


@pytest.mark.parametrize(
    ("value", "told"),
    [
        pytest.param(None, None, id="as torch comes"),
        pytest.param(
            "1",
            "TF32 was on by TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 and was switched off: fp32 products are computed in"
            " fp32",
            id="as NVIDIA's containers have it",
        ),
        pytest.param("0", None, id="switched off by hand"),
    ],
)
def test_fp32_is_computed_without_tf32_and_said_so_once_where_it_was_on(value: str | None, told: str | None) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"}
    if value is not None:
        environment["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"] = value
    done = subprocess.run(
        [sys.executable, "-c", SWITCH], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    found = json.loads(done.stdout)
    assert found["told"] == [told, None]
    assert found["old"] == [False, False]
    assert "tf32" not in found["new"]
    assert found["of_products"] == "highest"
