"""A causal language model of a few transformer layers, in bfloat16 autocast."""

import argparse
import time

import torch
from torch import nn

from checkpoints import checkpoint


class LanguageModel(nn.Module):
    def __init__(self, vocabulary, width, layers, heads, length):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, dim_feedforward=4 * width, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        x = self.tokens(tokens) + self.positions[:length]
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args()

    vocabulary = 8192
    model = LanguageModel(vocabulary, options.width, options.layers, 8, options.length).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    checkpoint("model")
    for step in range(options.steps):
        tokens = torch.zeros(options.batch, options.length + 1, dtype=torch.long, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(
                logits.reshape(-1, vocabulary), tokens[:, 1:].reshape(-1)
            )
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del logits, loss
        checkpoint(f"step {step}")
    print(f"allocated {torch.cuda.memory_allocated()} bytes")
    time.sleep(0.2)


if __name__ == "__main__":
    main()
