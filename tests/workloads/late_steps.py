"""Trains one of several small models step after step, for an attach at any moment.

    late_steps.py PROGRAM STEPS    PROGRAM is a function below
"""

import copy
import sys
import time

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

BATCH = 256
WIDTHS = (1000, 2000, 500)


def perceptron():
    ingoing, hidden, outgoing = WIDTHS
    return nn.Sequential(nn.Linear(ingoing, hidden), nn.ReLU(), nn.Linear(hidden, outgoing)).cuda()


def loss_of(output):
    target = torch.randint(0, WIDTHS[2], (BATCH,), device="cuda")
    return nn.functional.cross_entropy(output, target)


def batch():
    return torch.randn(BATCH, WIDTHS[0], device="cuda")


def plain():
    model = perceptron()
    optimizer = torch.optim.Adam(model.parameters())
    while True:
        optimizer.zero_grad()
        loss_of(model(batch())).backward()
        optimizer.step()
        yield


def accumulation():
    model = perceptron()
    optimizer = torch.optim.Adam(model.parameters())
    while True:
        optimizer.zero_grad()
        for _ in range(3):
            loss_of(model(batch())).backward()
        optimizer.step()
        yield


def average():
    model = perceptron()
    average = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters())
    while True:
        optimizer.zero_grad()
        loss_of(model(batch())).backward()
        optimizer.step()
        with torch.no_grad():
            for kept, parameter in zip(average.parameters(), model.parameters()):
                kept.lerp_(parameter, 0.1)
        yield


def checkpointed():
    model = perceptron()
    optimizer = torch.optim.Adam(model.parameters())
    while True:
        optimizer.zero_grad()
        loss_of(checkpoint(model, batch(), use_reentrant=False)).backward()
        optimizer.step()
        yield


def gan():
    generator, discriminator = perceptron(), nn.Sequential(nn.Linear(500, 100), nn.ReLU(), nn.Linear(100, 1)).cuda()
    for_generator = torch.optim.Adam(generator.parameters())
    for_discriminator = torch.optim.Adam(discriminator.parameters())
    while True:
        for_discriminator.zero_grad()
        made = generator(batch())
        (discriminator(made.detach()).mean() - discriminator(torch.randn(BATCH, 500, device="cuda")).mean()).backward()
        for_discriminator.step()
        for_generator.zero_grad()
        discriminator(made).mean().neg().backward()
        for_generator.step()
        yield


def main():
    steps = globals()[sys.argv[1]]()
    next(steps)
    print("ready", flush=True)
    for _ in range(int(sys.argv[2])):
        next(steps)
        time.sleep(0.02)


main()
