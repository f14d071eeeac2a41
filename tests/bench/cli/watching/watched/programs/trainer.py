"""Hugging Face's Trainer on a tiny model, two microbatches a step: `python trainer.py FOLDER`."""

from __future__ import annotations

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

STEPS = 4


def main() -> None:
    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16, n_positions=8)
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(64)]
    arguments = TrainingArguments(
        output_dir=sys.argv[1],
        max_steps=STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    done = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=rows).train()
    print(float(done.training_loss).hex())


if __name__ == "__main__":
    main()
