"""Tensors in places that would lead a walker astray: cycles, depths, strange keys, crowds, liars."""

import sys

import torch
from torch import nn

import tensor_reference


def made(size):
    return torch.zeros(size, device="cuda")


class Liar:
    """Says that it is a tensor."""

    @property
    def __class__(self):
        return torch.Tensor

    def __getattr__(self, name):
        raise RuntimeError("nobody is to ask")

    def __eq__(self, other):
        raise RuntimeError("nobody is to compare")

    __hash__ = object.__hash__


class Child(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(made(201))


class Family(nn.Module):
    """A child that is held twice, and knows its parent without being its parent."""

    def __init__(self):
        super().__init__()
        self.first = Child()
        self.second = self.first
        # Not registered: that would be a module within itself.
        object.__setattr__(self.first, "parent", self)


class Sideways(nn.Module):
    """A name that no attribute could have."""

    def __init__(self):
        super().__init__()
        self.register_parameter("a b\x1b[31m\n", nn.Parameter(made(202)))


def nested(depth, inner):
    for _ in range(depth):
        inner = [inner]
    return inner


def linked(length, last):
    for _ in range(length):
        last = {"next": last}
    return last


def crowds():
    many = [made(210) for _ in range(3000)]
    wide = {number: None for number in range(100_000)}
    wide["tensor"] = made(211)
    holes = {number: None for number in range(1000)}
    for number in range(999):
        del holes[number]
    holes["after holes"] = made(212)
    return many, wide, holes


def keys():
    return {
        b"bytes": made(220),
        (1, "two"): made(221),
        3.5: made(222),
        None: made(223),
        True: made(224),
        2**80: made(225),
        -7: made(226),
        "quote'd": made(227),
        "new\nline": made(228),
        "\x1b[2J": made(229),
        "Bücher, книги, 本, \U0001f4da": made(230),
        "long" * 5000: made(231),
        "\ud800": made(232),
        frozenset([1]): made(233),
        Liar(): made(234),
    }


# What is called the same on all of them.
EXPECTED = [
    ("maze[-7]", [226]),
    # True is 1.
    ("maze[1]", [224]),
    ("first.weight", [201]),
    ("second.weight", [201]),
]


def main(points, options):
    cycle = [made(240)]
    cycle.append(cycle)
    own = {}
    own["own"] = own
    own["tensor"] = made(241)
    deep = nested(100_000, made(242))
    chain = linked(50_000, made(243))
    maze = keys()
    liar = Liar()
    held = crowds()
    family, sideways = Family(), Sideways()
    text = {"str": "x" * 1_000_000, "bytes": bytes(1_000_000), "int": 1 << 100_000}
    dead = made(244)
    dead.itself = dead
    del dead
    points.at("maze", EXPECTED)
    # Python itself would recurse when it lets go of these.
    while isinstance(deep, list):
        deep = deep[0]
    while isinstance(chain, dict):
        chain = chain["next"]
    return cycle, own, maze, liar, held, family, sideways, text, sys


if __name__ == "__main__":
    tensor_reference.run(main)
