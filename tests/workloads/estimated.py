"""One training script for any device: what is estimated on the CPU is compared with a run on a GPU."""

import argparse
import json
import time

import torch
from torch import nn
from torch.nn import functional as F


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [1024, 2048, 2048, 2048, 1000]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:]))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = self.dropout(torch.relu(layer(x)))
        return self.layers[-1](x)


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [3, 32, 64, 96]
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2))
            for a, b in zip(widths, widths[1:])
        )
        self.head = nn.Linear(widths[-1], 100)

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean(dim=(2, 3)))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        attended = attended.transpose(1, 2).reshape(batch, length, width)
        x = x + self.dropout(self.projection(attended))
        return x + self.dropout(self.mlp(self.norm2(x)))


class Transformer(nn.Module):
    VOCABULARY = 8192

    def __init__(self, width=256, layers=4):
        super().__init__()
        self.tokens = nn.Embedding(self.VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, 8) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, self.VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


def batches(model, device):
    """One batch of a model's inputs and targets."""
    if model == "perceptron":
        return torch.randn(256, 1024, device=device), torch.randint(0, 1000, (256,), device=device)
    if model == "convnet":
        return torch.randn(16, 3, 64, 64, device=device), torch.randint(0, 100, (16,), device=device)
    tokens = torch.randint(0, Transformer.VOCABULARY, (4, 129), device=device)
    return tokens[:, :-1], tokens[:, 1:].reshape(-1)


MODELS = {"perceptron": Perceptron, "convnet": ConvNet, "transformer": Transformer}
OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "rmsprop": torch.optim.RMSprop}


def sizes(model):
    """Bytes of the parameters and buffers of each module, by its path from the model's class."""
    each = {}
    for kind, named in (("parameters", model.named_parameters()), ("buffers", model.named_buffers())):
        for name, tensor in named:
            path = ".".join([type(model).__name__, *name.split(".")[:-1]])
            of_module = each.setdefault(path, {"parameters": 0, "buffers": 0})
            of_module[kind] += tensor.numel() * tensor.element_size()
    return each


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adam")
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--one-by-one", action="store_true", help="foreach=False")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--sizes", help="write to this file how large the model is")
    options = parser.parse_args()

    model = MODELS[options.model]().to(options.device)
    optimizer = OPTIMIZERS[options.optimizer](
        model.parameters(), lr=1e-3, weight_decay=options.weight_decay, foreach=False if options.one_by_one else None
    )
    for step in range(options.steps):
        inputs, targets = batches(options.model, options.device)
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}", flush=True)
    if options.sizes:
        with open(options.sizes, "w") as file:
            json.dump(sizes(model), file)
    if options.device != "cpu":
        print(json.dumps({
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
            "live": torch.cuda.memory_allocated(),
        }))
        # Autograd's threads still drop Python objects; an interpreter that ends now may abort.
        time.sleep(0.2)


if __name__ == "__main__":
    main()
