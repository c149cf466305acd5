"""A server that generates words with a small decoder: each request has a cache of keys and values that grows by a word in each call of the
model (`torch.cat`, as transformers' `DynamicCache` does), and is dropped at its end. No optimizer, no gradients.

Options: --requests N, --words N (of each answer), --prompt N
Under `purposes.py` it tells what its cache holds after each call.
"""

import argparse
import sys

import torch
from torch.nn import functional as F

HEADS, WIDTH = 4, 256


class Cache:
    def __init__(self):
        self.keys, self.values = {}, {}

    def update(self, layer, key, value):
        if layer not in self.keys:
            self.keys[layer], self.values[layer] = key, value
        else:
            self.keys[layer] = torch.cat([self.keys[layer], key], dim=-2)
            self.values[layer] = torch.cat([self.values[layer], value], dim=-2)
        return self.keys[layer], self.values[layer]

    def tensors(self):
        return [*self.keys.values(), *self.values.values()]


class Layer(torch.nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, hidden, cache):
        normed = self.norm(hidden)
        query, key, value = (
            of(normed).view(1, -1, HEADS, WIDTH // HEADS).transpose(1, 2)
            for of in (self.query, self.key, self.value)
        )
        key, value = cache.update(self.number, key * 0.5, value)
        scores = torch.softmax(query @ key.transpose(-1, -2), dim=-1)
        return hidden + self.out((scores @ value).transpose(1, 2).flatten(2))


class Decoder(torch.nn.Module):
    def __init__(self, layers=3, vocabulary=1000):
        super().__init__()
        self.words = torch.nn.Embedding(vocabulary, WIDTH)
        self.layers = torch.nn.ModuleList(Layer(number) for number in range(layers))
        self.head = torch.nn.Linear(WIDTH, vocabulary)

    def forward(self, words, cache):
        hidden = self.words(words)
        for layer in self.layers:
            hidden = layer(hidden, cache)
        return self.head(hidden[:, -1])


@torch.no_grad()
def generate(model, prompt, words):
    cache, answer = Cache(), prompt
    for _ in range(words):
        scores = model(answer if answer is prompt else answer[:, -1:], cache)
        answer = torch.cat([answer, F.softmax(scores, dim=-1).argmax(dim=-1, keepdim=True)], dim=-1)
        if purposes := sys.modules.get("purposes"):
            purposes.see("cached", cache.tensors())
    return answer


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--words", type=int, default=24)
    parser.add_argument("--prompt", type=int, default=16)
    options = parser.parse_args()
    model = Decoder().cuda().eval()
    for _ in range(options.requests):
        prompt = torch.randint(1000, (1, options.prompt), device="cuda")
        generate(model, prompt, options.words)


if __name__ == "__main__":
    main()
