"""Training loops whose memory is for known purposes: one with batches, checkpointing, accumulated gradients and
evaluation, and one of two networks with an optimizer each.

    python phases.py --part train --iterations 6

At the end of each iteration a line of JSON says the truth: the bytes of parameters, buffers, gradients and optimizer
state, from the objects that hold them, each storage once and rounded as the allocator rounds; and how many blocks the
allocator had handed out and taken back by then. It ends without
tidying up, so that what is live at the end of a recording is what the last line says.
"""

import argparse
import json
import os
import sys
import time

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


def rounded(tensors):
    """Bytes of the storages on the GPU, as the caching allocator counts them."""
    storages = {}
    for tensor in tensors:
        if tensor is not None and tensor.is_cuda:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = -(-storage.nbytes() // 512) * 512
    return sum(storages.values())


def tell(part, iteration, networks, optimizers):
    parameters = [parameter for network in networks for parameter in network.parameters()]
    buffers = [buffer for network in networks for buffer in network.buffers()]
    state = [
        value
        for optimizer in optimizers
        for of_parameter in optimizer.state.values()
        for value in of_parameter.values()
        if torch.is_tensor(value)
    ]
    blocks = torch.cuda.memory_stats()
    print(
        json.dumps(
            {
                "part": part,
                "handed_out": blocks["allocation.all.allocated"],
                "taken_back": blocks["allocation.all.freed"],
                "iteration": iteration,
                "parameters": rounded(parameters + buffers),
                "gradients": rounded([parameter.grad for parameter in parameters]),
                "optimizer_state": rounded(state),
                "allocated": torch.cuda.memory_allocated(),
                "peak": torch.cuda.max_memory_allocated(),
            }
        ),
        flush=True,
    )


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    """The second block is computed again in the backward pass."""

    def __init__(self, width):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        for number, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if number == 1 else block(x)
        return self.head(self.norm(x))


def train(iterations, width=256, batch=512, accumulate=2):
    model = Net(width).to("cuda")
    optimizer = torch.optim.Adam(model.parameters())
    lossy = nn.CrossEntropyLoss()
    samples = iterations * accumulate * batch
    data = TensorDataset(torch.randn(samples, width), torch.randint(0, 10, (samples,)))
    batches = iter(DataLoader(data, batch_size=batch))
    test = DataLoader(TensorDataset(data.tensors[0][: 2 * batch]), batch_size=batch)
    for iteration in range(1, iterations + 1):
        optimizer.zero_grad()
        for _ in range(accumulate):
            x, target = next(batches)
            x, target = x.to("cuda"), target.to("cuda")
            loss = lossy(model(x), target) / accumulate
            loss.backward()
            del loss
        optimizer.step()
        tell("train", iteration, [model], [optimizer])
        torch.cuda.reset_peak_memory_stats()
        if iteration % 3 == 0:
            evaluate(model, test)
    return model, optimizer


def evaluate(model, test):
    model.eval()
    right = torch.zeros((), device="cuda")
    with torch.no_grad():
        for (x,) in test:
            right += model(x.to("cuda")).argmax(1).eq(0).sum()
    model.train()


def gan(iterations, width=256, batch=512):
    generator = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width)).to("cuda")
    judge = nn.Sequential(nn.Linear(width, width), nn.LeakyReLU(), nn.Linear(width, 1)).to("cuda")
    generates = torch.optim.Adam(generator.parameters())
    judges = torch.optim.RMSprop(judge.parameters())
    lossy = nn.BCEWithLogitsLoss()
    for iteration in range(1, iterations + 1):
        real = torch.randn(batch, width, device="cuda")
        noise = torch.randn(batch, 64, device="cuda")
        judges.zero_grad()
        fake = generator(noise)
        ones, zeros = torch.ones(batch, 1, device="cuda"), torch.zeros(batch, 1, device="cuda")
        loss = lossy(judge(real), ones) + lossy(judge(fake.detach()), zeros)
        loss.backward()
        judges.step()
        generates.zero_grad()
        loss = lossy(judge(fake), ones)
        loss.backward()
        generates.step()
        tell("gan", iteration, [generator, judge], [generates, judges])
        del fake, loss, real, noise, ones, zeros
    return generator, judge, generates, judges


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--part", choices=["train", "gan"], default="train")
    parser.add_argument("--iterations", type=int, default=6)
    options = parser.parse_args()
    torch.manual_seed(0)
    kept = {"train": train, "gan": gan}[options.part](options.iterations)
    torch.cuda.synchronize()
    sys.stdout.flush()
    # What was asked for last is still to be looked up in this process.
    time.sleep(1)
    os._exit(0 if kept else 1)


if __name__ == "__main__":
    main()
