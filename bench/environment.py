"""What a process was told from outside, fit to be kept: without the secrets in it."""

from __future__ import annotations

import re
from collections.abc import Mapping

_RELEVANT = (
    *("NCCL_", "RCCL_", "GLOO_", "UCX_", "FI_"),
    *("TORCH", "PYTORCH_", "TRITON_", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "HIP_", "HSA_", "ROCR_"),
    *("OMP_", "MKL_", "KMP_", "GOMP_", "MALLOC_"),
    *("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_JOB_PARTITION", "SLURM_CPUS_PER_TASK"),
)
_SECRET = r"token|secret|password|passwd|key|credential"
_SECRET_NAME = re.compile(_SECRET, re.IGNORECASE)
# Up to the last @ of the word: a password may hold an unescaped one, and too much hidden does no harm.
_USERINFO = re.compile(r"(?<=://)\S*@")
_SECRET_QUERY = re.compile(rf"([?&][^=&\s]*(?:{_SECRET})[^=&\s]*=)[^&\s]*", re.IGNORECASE)
REDACTED = "(redacted)"


def relevant(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that can change a measurement, in order of name.

    A variable whose name says that it is a secret keeps its name only; addresses lose their user and password.
    """
    return {
        name: REDACTED if _SECRET_NAME.search(name) else redact(value)
        for name, value in sorted(environment.items())
        if name.startswith(_RELEVANT)
    }


def redact(text: str) -> str:
    """The text; addresses in it lose their user and password, and what their query calls secret."""
    return _SECRET_QUERY.sub(rf"\1{REDACTED}", _USERINFO.sub(f"{REDACTED}@", text))
