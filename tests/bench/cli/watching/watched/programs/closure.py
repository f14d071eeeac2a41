"""Lightning on a tiny model: its closure, which the optimizer calls, holds forward and backward of one step.

`python closure.py FOLDER` accumulates two microbatches a step, sleeps in forward, and prints each loss exactly.
"""

from __future__ import annotations

import logging
import sys
import time
import warnings
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

STEPS, MICROBATCHES = 3, 2
SLEEP_S = 0.03


def main() -> None:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")  # Lightning advises how many data workers to have.
    lightning: Any = import_module("pytorch_lightning")

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))

        def training_step(self, batch: list[Tensor], _number: int) -> Tensor:
            loss: Tensor = self.layers(batch[0]).square().mean()
            time.sleep(SLEEP_S)
            print(float(loss.detach()).hex())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.1)

    lightning.seed_everything(0, verbose=False)
    trainer = lightning.Trainer(
        max_steps=STEPS,
        accumulate_grad_batches=MICROBATCHES,
        accelerator="cpu",
        default_root_dir=sys.argv[1],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4))


if __name__ == "__main__":
    main()
