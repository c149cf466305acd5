"""A server that answers requests by a small transformer: no optimizer, no gradients, requests of several lengths. With `--keep`, it keeps every
answer's keys and values (a cache that is never emptied).

It prints `kept BYTES in N requests` at its end: what emptying the cache gives back."""

import argparse
import time

import torch


class Answerer(torch.nn.Module):
    def __init__(self, width=128, layers=2):
        super().__init__()
        self.embedding = torch.nn.Embedding(1000, width)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(width, 4, 256, batch_first=True)
            for _ in range(layers)
        )

    def forward(self, words):
        hidden = self.embedding(words)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


def answer(model, words):
    with torch.inference_mode():
        return model(words)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()

    model = Answerer().cuda().eval()
    cache = []
    for request in range(options.requests):
        words = torch.randint(1000, (4, 16 + 8 * (request * 7 % 5)), device="cuda")
        answered = answer(model, words)
        if options.keep:
            cache.append(answered[:, :16].clone())
        time.sleep(0.002)
    del words, answered
    before = torch.cuda.memory_allocated()
    cache.clear()
    kept = before - torch.cuda.memory_allocated()
    print(f"kept {kept} in {options.requests} requests", flush=True)


if __name__ == "__main__":
    main()
