"""The convolutions of VGG-19, and five large tensors that come and go."""

import torch
from torch import nn

import tensor_reference

# Channels of the convolutions; "M" is a pooling.
LAYERS = [64, 64, "M", 128, 128, "M", *[256] * 4, "M", *[512] * 4, "M", *[512] * 4, "M"]


def features():
    layers, channels = [], 3
    for layer in LAYERS:
        if layer == "M":
            layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
        else:
            layers += [nn.Conv2d(channels, layer, kernel_size=3, padding=1), nn.ReLU(inplace=True)]
            channels = layer
    return nn.Sequential(*layers)


def images(count):
    # Not random: that is of no matter here, and takes seconds.
    return torch.zeros(count, 3, 512, 512).float()


def main(points, options):
    device = torch.device("cuda:0")
    points.at("nothing")
    cnn = features().to(device).eval()
    points.at("model")
    dummy_1 = images(30).to(device)
    dummy_2 = images(40).to(device)
    dummy_3 = images(60).to(device)
    points.at("three")
    dummy_4 = images(120).to(device)
    dummy_5 = images(80).to(device)
    points.at("five")
    dummy_4 = dummy_4.cpu()
    dummy_2 = dummy_2.cpu()
    torch.cuda.empty_cache()
    points.at("two back")
    del cnn, dummy_1, dummy_2, dummy_3, dummy_4, dummy_5
    points.at("gone")


if __name__ == "__main__":
    tensor_reference.run(main)
