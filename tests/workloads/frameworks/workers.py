"""Two processes that train at once, made by `spawn` or by a fork server.

    START=forkserver python frameworks/workers.py
"""

import multiprocessing
import os

import torch
from torch import nn

import framework_truth as truth


def train(number, width):
    with truth.recording():
        model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(8):
            inputs = torch.randn(16, 64, device="cuda")
            model(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            truth.iteration()
        if number == 0:
            truth.point("trained")


def main():
    context = multiprocessing.get_context(os.environ.get("START", "spawn"))
    workers = [context.Process(target=train, args=(it, 128 << it)) for it in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise SystemExit("a worker failed")


if __name__ == "__main__":
    truth.run(main, here=False)
