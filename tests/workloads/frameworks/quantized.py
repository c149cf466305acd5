"""A model whose weights torchao makes of 8 bits: tensor subclasses, in inference."""

import torch
import torchao
from torch import nn

import framework_truth as truth


def main():
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).cuda().eval()
    torchao.quantize_(model, torchao.quantization.Int8WeightOnlyConfig())
    truth.iteration_starts("quantized.py:%d" % (answer.__code__.co_firstlineno + 1))
    for _ in range(40):
        inputs = torch.randn(4, 64, device="cuda")
        answer(model, inputs)
        truth.iteration()
    truth.point("answered")


def answer(model, inputs):
    model(inputs)


if __name__ == "__main__":
    with torch.inference_mode():
        truth.run(main, packages=["torchao"])
