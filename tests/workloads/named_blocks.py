"""Trains a small model whose parameters and optimizer's state stay where they are, and writes where that is.

    python named_blocks.py --out truth.json --until FILE
"""

import argparse
import json
import os
import time

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(4))
        self.head = torch.nn.Linear(512, 128)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)


def truth(model, optimizer):
    parameters = {name: it.data_ptr() for name, it in model.named_parameters()}
    state = {
        f"Adam.{key}[{name}]": value.data_ptr()
        for name, it in model.named_parameters()
        for key, value in optimizer.state[it].items()
        if value.is_cuda
    }
    return {"parameter": parameters, "optimizer_state": state}


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--out", required=True)
    options.add_argument("--until", required=True, help="it ends when there is this file")
    options = options.parse_args()
    model = Net().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    while not os.path.exists(options.until):
        x = torch.randn(64, 512, device="cuda")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)
    with open(options.out, "w") as out:
        json.dump(truth(model, optimizer), out)


if __name__ == "__main__":
    main()
