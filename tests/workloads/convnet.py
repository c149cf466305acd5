"""A small residual convolutional network on images."""

import argparse
import time

import torch
from torch import nn

from checkpoints import checkpoint


class ResidualBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x):
        y = torch.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return torch.relu(y + self.shortcut(x))


class ConvNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.stages = nn.Sequential(
            ResidualBlock(32, 64, 2),
            ResidualBlock(64, 128, 2),
            ResidualBlock(128, 256, 2),
        )
        self.head = nn.Linear(256, classes)

    def forward(self, x):
        x = self.stages(self.stem(x))
        x = x.mean(dim=(2, 3))
        return self.head(x)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=64, help="height and width of the images")
    options = parser.parse_args()

    model = ConvNet(classes=100).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    checkpoint("model")
    for step in range(options.steps):
        images = torch.randn(options.batch, 3, options.size, options.size, device="cuda")
        labels = torch.randint(0, 100, (options.batch,), device="cuda")
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        checkpoint(f"step {step}")
    print(f"allocated {torch.cuda.memory_allocated()} bytes")
    time.sleep(0.2)


if __name__ == "__main__":
    main()
