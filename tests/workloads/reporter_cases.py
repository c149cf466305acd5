"""Models whose tensors share memory or are held by C++ alone: linear, tied, LSTM, a product nobody holds."""

import torch
from torch import nn

import tensor_reference


def one_linear(points):
    linear = nn.Linear(1024, 1024).cuda()
    points.at("linear")
    inp = torch.Tensor(512, 1024).cuda()
    out = linear(inp).mean()
    points.at("linear forward")
    out.backward()
    points.at("linear backward")


def tied_weights(points):
    linear = nn.Linear(1024, 1024).cuda()
    linear2 = nn.Linear(1024, 1024).cuda()
    linear2.weight = linear.weight
    container = nn.Sequential(linear, linear2)
    inp = torch.Tensor(512, 1024).cuda()
    out = container(inp).mean()
    out.backward()
    points.at("tied")


def recurrent(points):
    try:
        lstm = nn.LSTM(1024, 1024).cuda()
    except RuntimeError as error:
        print("skipped: this cuDNN has no LSTM:", error, flush=True)
        return
    points.at("lstm")
    inp = torch.Tensor(10, 10, 1024).cuda()
    out, _ = lstm(inp)
    points.at("lstm forward")
    out.mean().backward()
    points.at("lstm backward")


def product_that_nobody_holds(points):
    linear = nn.Linear(1024, 1024).cuda()
    inp = torch.Tensor(512, 1024).cuda()
    out = linear(inp * (inp + 2)).mean()
    points.at("product")
    inp.requires_grad_()
    out = linear(inp * (inp + 2)).mean()
    points.at("product with gradient")
    del out
    points.at("product gone")


def main(points, options):
    for case in [one_linear, tied_weights, recurrent, product_that_nobody_holds]:
        case(points)


if __name__ == "__main__":
    tensor_reference.run(main)
