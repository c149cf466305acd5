"""A long-running training loop, to attach to in the middle.

Memory grows until the optimizer has its state (the first step) and then repeats step by step.
"""

import argparse
import os
import time

import torch
from torch import nn

from checkpoints import checkpoint


def build_model(width, layers):
    blocks = []
    for _ in range(layers):
        blocks += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*blocks).to("cuda")


def train_step(model, optimizer, batch, width):
    x = torch.randn(batch, width, device="cuda")
    loss = (model(x) - x).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to train")
    parser.add_argument("--steps", type=int, default=None, help="stop after so many steps, if sooner")
    parser.add_argument("--until", help="stop when this file exists, if sooner")
    parser.add_argument("--pause", type=float, default=0.005, help="seconds to rest after each step")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    options = parser.parse_args()

    model = build_model(options.width, options.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    train_step(model, optimizer, options.batch, options.width)
    checkpoint("warm")
    print(f"PID {os.getpid()}", flush=True)

    end = time.monotonic() + options.seconds
    step = 0
    while time.monotonic() < end and (options.steps is None or step < options.steps):
        if options.until is not None and os.path.exists(options.until):
            break
        train_step(model, optimizer, options.batch, options.width)
        step += 1
        checkpoint(f"step {step}")
        time.sleep(options.pause)
    checkpoint("end")
    print(f"{step} steps, allocated {torch.cuda.memory_allocated()} bytes", flush=True)
    time.sleep(0.2)


if __name__ == "__main__":
    main()
