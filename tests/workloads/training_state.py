"""What training keeps beside the weights: gradients, optimizers' state, buffers, averages."""

import copy

import torch
from torch import nn

import tensor_reference


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.head = nn.ParameterDict({"out": nn.Parameter(torch.zeros(8, 5))})
        self.register_buffer("scale", torch.ones(5))
        self.register_buffer("passing", torch.ones(7), persistent=False)
        self.register_parameter("absent", None)
        self.register_buffer("absent_too", None)

    def forward(self, x):
        x = self.norm(self.stem(x)).mean(dim=(2, 3))
        for block in self.blocks:
            x = torch.relu(block(x))
        return (x @ self.head["out"]) * self.scale


def step(model, optimizer, x):
    loss = model(x).sum()
    loss.backward()
    optimizer.step()


def main(points, options):
    model = Net().cuda()
    x = torch.zeros(4, 3, 16, 16, device="cuda")
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=True)
    points.at("built")
    step(model, adam, x)
    points.at("adam")
    adam.zero_grad(set_to_none=True)
    points.at("gradients gone")
    for _ in range(3):
        # Accumulates.
        (model(x).sum() / 3).backward()
    points.at("accumulated")
    del adam
    momentum = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step(model, momentum, x)
    points.at("momentum")
    average = copy.deepcopy(model)
    for parameter in average.parameters():
        parameter.requires_grad_(False)
    points.at("average")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model(x)
    points.at("autocast")
    del out
    model.zero_grad(set_to_none=False)
    checkpoint = {"model": model.state_dict(), "optimizer": momentum.state_dict(), "epoch": 3}
    points.at("checkpoint")
    del checkpoint, average


if __name__ == "__main__":
    tensor_reference.run(main)
