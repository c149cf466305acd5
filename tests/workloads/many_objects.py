"""A model of many modules and a heap of many objects, for what a snapshot costs."""

import argparse

import torch
from torch import nn

import tensor_reference


class Item:
    """As records are in programs: an object with a few attributes."""

    def __init__(self, number):
        self.number = number
        self.name = str(number)


def heap(objects):
    """So many objects of Python that its garbage collector knows, of five sorts."""
    held = []
    while objects > 0:
        number = len(held)
        # The object, a list, a dict, a tuple of a list that is not let go: five in all.
        held.append([Item(number), {"key": number, "more": [number]}, ([],)])
        objects -= 6
    return held


class Block(nn.Module):
    """Two modules, and itself."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        return self.norm(self.linear(x))


def parser():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--modules", type=int, default=2000)
    options.add_argument("--objects", type=int, default=1_000_000)
    return options


def main(points, options):
    model = nn.Sequential(*[Block() for _ in range(options.modules // 3)]).cuda()
    adam = torch.optim.Adam(model.parameters())
    model(torch.zeros(4, 8, device="cuda")).sum().backward()
    adam.step()
    held = heap(options.objects)
    points.at("held")
    del held


if __name__ == "__main__":
    tensor_reference.run(main, parser())
