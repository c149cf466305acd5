"""A model that torch.compile traces, forward and backward, into operators (aot_eager)."""

import torch
from torch import nn

import framework_truth as truth


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))

    def forward(self, inputs):
        return inputs + self.layers(self.norm(inputs))


def main():
    model = nn.Sequential(Block(), Block(), nn.Linear(64, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(8):
        inputs = torch.randn(16, 64, device="cuda")
        labels = torch.randint(10, (16,), device="cuda")
        nn.functional.cross_entropy(compiled(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        truth.iteration()
    truth.point("trained")


if __name__ == "__main__":
    # Hooks would change what is compiled.
    truth.run(main, modules=False)
