"""A model whose first half lies on one GPU and whose second half on another."""

import argparse
import time

import torch
from torch import nn

from checkpoints import checkpoint


class SplitModel(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.first = self.half(width, layers).to("cuda:0")
        self.second = self.half(2 * width, layers).to("cuda:1")
        self.widen = nn.Linear(width, 2 * width).to("cuda:0")

    @staticmethod
    def half(width, layers):
        return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)])

    def forward(self, x):
        x = self.widen(self.first(x))
        return self.second(x.to("cuda:1"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--width", type=int, default=1024)
    options = parser.parse_args()

    if torch.cuda.device_count() < 2:
        raise SystemExit(f"needs two GPUs and sees {torch.cuda.device_count()}")
    model = SplitModel(options.width, layers=3)
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoint("model")
    for step in range(options.steps):
        x = torch.randn(128, options.width, device="cuda:0")
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        checkpoint(f"step {step}")
    for device in range(2):
        print(f"cuda:{device}: allocated {torch.cuda.memory_allocated(device)} bytes")
    time.sleep(0.2)


if __name__ == "__main__":
    main()
