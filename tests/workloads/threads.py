"""Several threads that train at the same time, each its own model on its own stream."""

import argparse
import threading
import time

import torch
from torch import nn

from checkpoints import checkpoint


class Trainer(threading.Thread):
    def __init__(self, number, steps, start_line):
        super().__init__(name=f"trainer-{number}")
        self.width = 256 * (number + 1)
        self.steps = steps
        self.start_line = start_line
        self.failure = None

    def run(self):
        try:
            self.train()
        except Exception as failure:
            self.failure = failure
            self.start_line.abort()

    def train(self):
        with torch.cuda.stream(torch.cuda.Stream()):
            self.model = nn.Sequential(
                nn.Linear(self.width, 2 * self.width), nn.GELU(), nn.Linear(2 * self.width, self.width)
            ).to("cuda")
            self.optimizer = torch.optim.Adam(self.model.parameters())
            self.start_line.wait()
            for _ in range(self.steps):
                self.train_step()

    def train_step(self):
        x = torch.randn(64, self.width, device="cuda")
        loss = (self.model(x) - x).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=4)
    options = parser.parse_args()

    torch.cuda.init()
    start_line = threading.Barrier(options.threads)
    trainers = [Trainer(number, options.steps, start_line) for number in range(options.threads)]
    for trainer in trainers:
        trainer.start()
    for trainer in trainers:
        trainer.join()
    for trainer in trainers:
        if trainer.failure is not None:
            raise trainer.failure
    torch.cuda.synchronize()
    checkpoint("joined")
    print(f"allocated {torch.cuda.memory_allocated()} bytes")
    time.sleep(0.2)


if __name__ == "__main__":
    main()
