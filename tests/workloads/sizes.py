"""A training loop that knows its own size, as profilers that hook into modules do.

    python sizes.py --out truth.json --until FILE [--device cuda]

It writes, for each module, the bytes of its own parameters and buffers (and of their blocks) and of what its last whole forward pass put
out, and of each iteration the epoch, the allocator's own peak and what its forward pass put out. Batches are as many in each epoch, and the last of an epoch is smaller. At the end it waits for the file.
"""

import argparse
import collections
import json
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 96
BATCH = 200
SAMPLES = 3 * BATCH + BATCH // 2
EPOCHS = 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.rectify = nn.ReLU(inplace=True)
        self.even = nn.BatchNorm1d(WIDTH)
        self.flat = nn.Flatten()
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(self.flat(self.even(self.rectify(x))))


def own(named):
    sizes = collections.Counter()
    for name, tensor in named:
        path = ".".join(["Net", *name.split(".")[:-1]])
        sizes[path] += tensor.untyped_storage().nbytes()
    return sizes


def blocks(model):
    """Bytes of the allocator's blocks, which are multiples of 512."""
    sizes = collections.Counter()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        path = ".".join(["Net", *name.split(".")[:-1]])
        sizes[path] += -(-tensor.untyped_storage().nbytes() // 512) * 512
    return sizes


def hooked(model, outputs):
    for name, module in model.named_modules():
        if next(module.children(), None) is None:

            def hook(module, inputs, output, path=f"Net.{name}"):
                # What is put out in the memory of what came in is no new variable.
                shared = inputs[0].untyped_storage().data_ptr() == output.untyped_storage().data_ptr()
                outputs[path] = 0 if shared else output.untyped_storage().nbytes()

            module.register_forward_hook(hook)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--until", required=True)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    cuda = options.device == "cuda"
    model = Net().to(options.device)
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(SAMPLES, WIDTH), torch.randint(0, 10, (SAMPLES,)))
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    held_out = DataLoader(TensorDataset(data.tensors[0][:BATCH]), batch_size=BATCH // 4)
    outputs, whole, iterations = {}, {}, []
    hooked(model, outputs)
    for epoch in range(1, EPOCHS + 1):
        for x, target in loader:
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            x, target = x.to(options.device), target.to(options.device)
            loss = nn.functional.cross_entropy(model(x), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            peak = torch.cuda.max_memory_allocated() if cuda else None
            iterations.append({"epoch": epoch, "batch": len(x), "peak": peak, "outputs": dict(outputs)})
            if len(x) == BATCH:
                whole = dict(outputs)
        model.eval()
        with torch.no_grad():
            for (x,) in held_out:
                model(x.to(options.device))
        model.train()
    truth = {
        "parameters": own(model.named_parameters()),
        "buffers": own(model.named_buffers()),
        "outputs": whole,
        "blocks": blocks(model),
        "iterations": iterations,
        "batch": BATCH,
    }
    with open(options.out, "w") as file:
        json.dump(truth, file)
    while not os.path.exists(options.until):
        time.sleep(0.05)


if __name__ == "__main__":
    main()
