"""ResNet-50, layer by layer as in torchvision, and how much its forward pass saves for the backward pass.

    python resnet50.py --size 224 --batch 16

As TRUMPY's example does, it calls the network once and adds up what comes out. Then it walks the graph from there, and prints as JSON
the bytes of the storages that nodes keep (`_saved_*`), each once, without parameters and buffers: `saved`; of which `input` is the
image. It ends with the graph alive; with `--backward` it goes back through it first.
"""

import argparse
import json
import os
import sys
import time

import torch
from torch import nn


class Bottleneck(nn.Module):
    """torchvision/models/resnet.py@v0.20: the stride is in the 3x3 convolution."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet50(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        inputs = 64
        for stage, (width, blocks) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)]):
            layers = []
            for block in range(blocks):
                layers.append(Bottleneck(inputs, width, 2 if stage > 0 and block == 0 else 1))
                inputs = 4 * width
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, 1000)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def saved_by(node):
    for name in dir(node):
        if name.startswith("_saved_"):
            value = getattr(node, name)
            for tensor in value if isinstance(value, (list, tuple)) else [value]:
                if torch.is_tensor(tensor):
                    yield tensor
    # Of a torch.autograd.Function, and of what torch.compile made.
    for name in ("saved_tensors", "_tensors_no_vc_check"):
        yield from filter(torch.is_tensor, getattr(node, name, ()))


def walk(result):
    nodes, waiting, storages = set(), [result.grad_fn], {}
    while waiting:
        node = waiting.pop()
        if node is None or node in nodes:
            continue
        nodes.add(node)
        waiting.extend(following for following, _ in node.next_functions)
        for tensor in saved_by(node):
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return storages


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backward", action="store_true")
    options = parser.parse_args()

    network = ResNet50().to(options.device)
    images = torch.rand(options.batch, 3, options.size, options.size, device=options.device)
    loss = network(images).sum()
    storages = walk(loss)
    of_model = [*network.parameters(), *network.buffers()]
    for tensor in of_model:
        storages.pop(tensor.untyped_storage().data_ptr(), None)
    of_images = storages.get(images.untyped_storage().data_ptr(), 0)
    print(
        json.dumps(
            {
                "parameters": sum(parameter.numel() for parameter in network.parameters()),
                "saved": sum(storages.values()),
                "input": of_images,
                "storages": len(storages),
            }
        ),
        flush=True,
    )
    if options.backward:
        loss.backward()
    sys.stdout.flush()
    # What was asked for last is still to be looked up in this process.
    time.sleep(1)
    os._exit(0)


if __name__ == "__main__":
    main()
