"""A perceptron of 64, 8 and 32 units in five steps: data and model, forward, loss, backward, optimizer."""

import torch
from torch import nn

import tensor_reference


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 32))

    def forward(self, x):
        return self.mlp(x)


def main(points, options):
    data = torch.rand(64, requires_grad=True).cuda()
    data.retain_grad()
    model = Perceptron().cuda()
    points.at("built")
    out = model(data)
    points.at("forward")
    loss = out.sum()
    points.at("loss")
    loss.backward()
    points.at("backward")
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.step()
    points.at("optimizer")


if __name__ == "__main__":
    tensor_reference.run(main)
