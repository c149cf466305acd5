"""Training on batches that worker processes load and a thread copies into pinned memory."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from checkpoints import checkpoint


class Recordings(Dataset):
    """Samples made up on the fly: a signal and its class."""

    def __init__(self, samples, length):
        self.samples = samples
        self.length = length

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        phase = torch.linspace(0, 1 + index % 7, self.length)
        return torch.sin(phase), index % 10


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    length = 4096
    loader = DataLoader(
        Recordings(options.steps * options.batch, length),
        batch_size=options.batch,
        num_workers=options.workers,
        pin_memory=True,
    )
    model = nn.Sequential(nn.Linear(length, 1024), nn.ReLU(), nn.Linear(1024, 10)).to("cuda")
    optimizer = torch.optim.Adam(model.parameters())
    checkpoint("model")
    for step, (signals, labels) in enumerate(loader):
        signals = signals.to("cuda", non_blocking=True)
        labels = labels.to("cuda", non_blocking=True)
        loss = nn.functional.cross_entropy(model(signals), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        checkpoint(f"step {step}")
    print(f"allocated {torch.cuda.memory_allocated()} bytes")
    time.sleep(0.2)


if __name__ == "__main__":
    main()
