"""Steps of two optimizers and batches of a data loader: what PyTorch says of itself, counted.

The last line is JSON: how often each was begun, as `{"Adam.step": 12, ...}`."""

import collections
import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    begun = collections.Counter()
    net = nn.Linear(8, 8).to("cuda")
    optimizers = [
        torch.optim.Adam([net.weight]),
        torch.optim.SGD([net.bias], lr=0.1),
    ]
    loader = DataLoader(TensorDataset(torch.randn(24, 8)), batch_size=4)
    for epoch in range(2):
        batches = iter(loader)
        while True:
            begun["_SingleProcessDataLoaderIter.next_batch"] += 1
            # The end of the data is asked for too.
            batch = next(batches, None)
            if batch is None:
                break
            for optimizer in optimizers:
                optimizer.zero_grad()
                begun[f"{type(optimizer).__name__}.zero_grad"] += 1
            net(batch[0].to("cuda")).sum().backward()
            for optimizer in optimizers[: 1 + epoch]:
                optimizer.step()
                begun[f"{type(optimizer).__name__}.step"] += 1
    # Names of the program's own say nothing.
    with torch.autograd.profiler.record_function("Optimizer.mine"):
        pass
    print(json.dumps(begun))


if __name__ == "__main__":
    main()
