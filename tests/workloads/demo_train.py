"""Trains a small GPT, and leaks: the mistake is in `evaluate`, and everybody has made it once.

    python demo_train.py --seconds 120
"""

import argparse
import os
import time

import torch

from checkpoints import checkpoint
from gpt import GPT


class Corpus:
    """Made-up text."""

    def __init__(self, vocabulary, length, batch):
        self.vocabulary = vocabulary
        self.shape = (batch, length + 1)

    def next_batch(self):
        tokens = torch.randint(0, self.vocabulary, self.shape, device="cuda")
        return tokens[:, :-1], tokens[:, 1:]


class History:
    """What is remembered for the plot at the end."""

    def __init__(self):
        self.losses = []
        self.predictions = []


def train_step(model, optimizer, corpus):
    tokens, targets = corpus.next_batch()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        _, loss = model(tokens, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def evaluate(model, corpus, history):
    tokens, targets = corpus.next_batch()
    logits, loss = model(tokens[:1], targets[:1])
    history.losses.append(loss)  # keeps the whole graph of the forward pass: it should be loss.item()
    history.predictions.append(logits.argmax(dim=-1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long to train")
    parser.add_argument("--steps", type=int, default=None, help="stop after so many steps, if sooner")
    parser.add_argument("--pause", type=float, default=0.05, help="seconds to rest after each step")
    parser.add_argument("--evaluate-every", type=int, default=20)
    options = parser.parse_args()

    vocabulary, length = 16384, 512
    model = GPT(vocabulary, length).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    corpus = Corpus(vocabulary, length, batch=8)
    history = History()
    checkpoint("model")
    print(f"PID {os.getpid()}", flush=True)

    end = time.monotonic() + options.seconds
    step = 0
    while time.monotonic() < end and (options.steps is None or step < options.steps):
        train_step(model, optimizer, corpus)
        if step % options.evaluate_every == 0:
            try:
                evaluate(model, corpus, history)
            except torch.cuda.OutOfMemoryError:
                print(f"step {step}: out of memory after {len(history.losses)} evaluations", flush=True)
                raise
            checkpoint(f"evaluated at step {step}")
        step += 1
        time.sleep(options.pause)
    checkpoint("end")
    print(f"{step} steps, allocated {torch.cuda.memory_allocated()} bytes", flush=True)
    time.sleep(0.2)


if __name__ == "__main__":
    main()
