"""Classes that derive from PyTorch's behind, before and below mixins."""

import torch
from torch import nn

import tensor_reference


class Mixin:
    def report(self):
        return type(self).__name__


class Slotless(Mixin):
    __slots__ = ()


class First(Mixin, nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)


class Last(nn.Module, Mixin):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)


class Deep(Slotless, First):
    pass


class Deeper(Deep):
    def __init__(self):
        super().__init__()
        self.first, self.last = First(), Last()
        self.weight = Weight(torch.zeros(3, 8))


class AdamBehind(Mixin, torch.optim.Adam):
    pass


class AdamBefore(torch.optim.Adam, Mixin):
    pass


class AdamBelow(Slotless, AdamBehind):
    pass


class Tagged(Mixin, torch.Tensor):
    pass


class TaggedBelow(Slotless, Tagged):
    pass


class Weight(Mixin, nn.Parameter):
    pass


def step(model, optimizer):
    sum(parameter.sum() for parameter in model.parameters()).backward()
    optimizer.step()


def main(points, options):
    models = [cls().cuda() for cls in (First, Last, Deep, Deeper)]
    points.at("built")
    optimizers = [
        cls(model.parameters(), lr=1e-3)
        for cls, model in zip((AdamBehind, AdamBefore, AdamBelow, AdamBelow), models)
    ]
    for model, optimizer in zip(models, optimizers):
        step(model, optimizer)
    points.at("stepped")
    tagged = torch.zeros(5, 5, device="cuda").as_subclass(Tagged)
    below = torch.zeros(6, 6, device="cuda").as_subclass(TaggedBelow)
    points.at("tagged")
    del tagged, below


if __name__ == "__main__":
    tensor_reference.run(main)
