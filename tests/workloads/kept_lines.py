"""Lines that keep some of the tensors that they allocate, on the main thread alone.

    python kept_lines.py
"""

import torch

kept = []


def first():
    return torch.ones(1000, device="cuda")


def second(size):
    return torch.ones(size, device="cuda")


for step in range(40):
    kept.append(first())
    other = second(2000 + step)
    if step % 4 == 0:
        kept.append(other)
    if step % 10 == 9:
        del kept[:3]
large = torch.empty(5 << 20, device="cuda")
