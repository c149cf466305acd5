"""A multi-layer perceptron trained with Adam."""

import argparse
import time

import torch
from torch import nn

from checkpoints import checkpoint


class Perceptron(nn.Module):
    def __init__(self, features, hidden, classes, layers):
        super().__init__()
        self.inputs = nn.Linear(features, hidden)
        self.hidden = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))
        self.outputs = nn.Linear(hidden, classes)

    def forward(self, x):
        x = torch.relu(self.inputs(x))
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self.outputs(x)


def train_step(model, optimizer, batch, features, classes):
    x = torch.randn(batch, features, device="cuda")
    target = torch.randint(0, classes, (batch,), device="cuda")
    loss = nn.functional.cross_entropy(model(x), target)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args()

    model = Perceptron(1024, options.hidden, 1000, options.layers).to("cuda")
    checkpoint("model")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(options.steps):
        loss = train_step(model, optimizer, options.batch, 1024, 1000)
        checkpoint(f"step {step}")
    print(f"loss {loss.item():.4f}, allocated {torch.cuda.memory_allocated()} bytes")

    # Autograd's threads still drop Python objects; an interpreter that ends now may abort.
    time.sleep(0.2)


if __name__ == "__main__":
    main()
