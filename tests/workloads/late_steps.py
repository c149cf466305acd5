"""Trains one of several small models step after step, for an attach at any moment.

    late_steps.py PROGRAM UNTIL    PROGRAM is a function below; ends when the file UNTIL is there
"""

import copy
import os
import sys
import time

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

BATCH = 256
WIDTHS = (1000, 2000, 500)


def perceptron(ingoing=WIDTHS[0], hidden=WIDTHS[1], outgoing=WIDTHS[2]):
    return nn.Sequential(nn.Linear(ingoing, hidden), nn.ReLU(), nn.Linear(hidden, outgoing)).cuda()


def random(width):
    return torch.randn(BATCH, width, device="cuda")


def learn(forward):
    """A forward and a backward pass."""
    data, target = random(WIDTHS[0]), torch.randint(0, WIDTHS[2], (BATCH,), device="cuda")
    nn.functional.cross_entropy(forward(data), target).backward()


def train(model, learn=learn):
    """Trains a model step after step; `learn` makes the gradients of a step."""
    optimizer = torch.optim.Adam(model.parameters())
    while True:
        optimizer.zero_grad()
        learn(model)
        optimizer.step()
        yield


def plain():
    return train(perceptron())


def small():
    """All tensors are in the allocator's small pool."""
    model = perceptron(100, 200, 50)
    optimizer = torch.optim.Adam(model.parameters())
    while True:
        optimizer.zero_grad()
        data, target = random(100), torch.randint(0, 50, (BATCH,), device="cuda")
        nn.functional.cross_entropy(model(data), target).backward()
        optimizer.step()
        yield


def accumulation():
    def learn_thrice(model):
        for _ in range(3):
            learn(model)

    return train(perceptron(), learn_thrice)


def average():
    model = perceptron()
    average = copy.deepcopy(model)
    for _ in train(model):
        with torch.no_grad():
            for kept, parameter in zip(average.parameters(), model.parameters()):
                kept.lerp_(parameter, 0.1)
        yield


def evaluation():
    """Calls one of two equal models, without gradients. All tensors are in the allocator's small pool."""
    model = perceptron(100, 200, 50)
    average = copy.deepcopy(model)
    data = random(100)
    while True:
        with torch.no_grad():
            model(data)
        yield


def checkpointed():
    def learn_again(model):
        learn(lambda data: checkpoint(model, data, use_reentrant=False))

    return train(perceptron(), learn_again)


def gan():
    generator, discriminator = perceptron(), perceptron(WIDTHS[2], 100, 1)
    for_generator = torch.optim.Adam(generator.parameters())
    for_discriminator = torch.optim.Adam(discriminator.parameters())
    while True:
        for_discriminator.zero_grad()
        noise, real = random(WIDTHS[0]), random(WIDTHS[2])
        made = generator(noise)
        (discriminator(made.detach()).mean() - discriminator(real).mean()).backward()
        for_discriminator.step()
        for_generator.zero_grad()
        discriminator(made).mean().neg().backward()
        for_generator.step()
        yield


def listed():
    """Models and optimizers in lists."""
    models = [perceptron() for _ in range(2)]
    optimizers = [torch.optim.Adam(model.parameters()) for model in models]
    while True:
        for model, optimizer in zip(models, optimizers):
            optimizer.zero_grad()
            learn(model)
            optimizer.step()
        yield


def replicated():
    """`DataParallel` over all GPUs."""
    return train(nn.DataParallel(perceptron()))


def distributed():
    """`DistributedDataParallel`, one rank."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    # Simulated GPUs exchange zeros: sizes of another model, and buckets that no longer fit.
    model = nn.parallel.DistributedDataParallel(
        perceptron(), device_ids=[0], init_sync=False, find_unused_parameters=True
    )
    return train(model)


def served():
    """Answers requests without gradients, and keeps what each answer needs again."""
    model = perceptron().eval()
    kept = []
    while True:
        request = random(WIDTHS[0])
        with torch.inference_mode():
            answer = model(request)
        kept.append(answer.clone())
        del request, answer
        yield


def main():
    steps = globals()[sys.argv[1]]()
    next(steps)
    print(f"ready {os.getpid()}", flush=True)
    while not os.path.exists(sys.argv[2]):
        next(steps)
        time.sleep(0.02)


main()
