"""The plainest training of the reference model on one CPU rank: what `single` is measured against."""

import json
import sys
import time

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

from workloads.core.data import Progressions
from workloads.core.transformer import Transformer
from workloads.cost_models.shape import Shape


def main() -> None:
    settings = json.loads(sys.argv[1])
    shape = Shape(**settings["shape"])
    steps = settings["warm_up"] + settings["steps"]
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(0)
    model = Transformer(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    data = Progressions(shape, seed=0, sequences=steps * shape.batch)
    loader = DataLoader(data, batch_size=shape.batch, shuffle=True, num_workers=1)
    ends = [time.perf_counter()]
    for tokens in loader:
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        ends.append(time.perf_counter())
    print(json.dumps(ends))


main()
