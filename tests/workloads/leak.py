"""A recurrent net that keeps its losses, and with each all that the backward pass would need (a leak that people write by accident).

At the end of each iteration it prints `iteration N allocated BYTES`, what the allocator says, and at its own end `kept BYTES in N iterations`:
what only the list kept alive, which emptying it gives back. With `--detach` nothing but the numbers of the losses is kept."""

import argparse

import torch


class Reader(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cell = torch.nn.LSTM(64, width, batch_first=True)
        self.head = torch.nn.Linear(width, 16)

    def forward(self, words):
        states, _ = self.cell(words)
        return self.head(states[:, -1])


def iterate(model, optimizer, losses, detach):
    words = torch.randn(8, 12, 64, device="cuda")
    optimizer.zero_grad()
    loss = model(words).square().mean()
    loss.backward(retain_graph=True)
    optimizer.step()
    losses.append(loss.item() if detach else loss)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--detach", action="store_true")
    options = parser.parse_args()

    model = Reader(128).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    allocated = []
    for iteration in range(1, options.iterations + 1):
        iterate(model, optimizer, losses, options.detach)
        allocated.append(torch.cuda.memory_allocated())
        print(f"iteration {iteration} allocated {allocated[-1]}", flush=True)
    before = torch.cuda.memory_allocated()
    losses.clear()
    kept = before - torch.cuda.memory_allocated()
    print(f"kept {kept} in {options.iterations} iterations", flush=True)


if __name__ == "__main__":
    main()
