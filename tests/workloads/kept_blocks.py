"""Asks for memory that no tensor will reach and keeps it, twice a second while a file is there.

It prints `READY`, waits for the file, and ends when that is gone."""

import argparse
import os
import time

import torch


def ask():
    return torch.cuda.caching_allocator_alloc(5_000)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--when", required=True, help="the file")
    options = parser.parse_args()
    before = torch.zeros(1000, device="cuda")
    print("READY", flush=True)
    while not os.path.exists(options.when):
        time.sleep(0.01)
    kept = []
    while os.path.exists(options.when):
        kept.append(ask())
        time.sleep(0.5)
    for block in kept:
        torch.cuda.caching_allocator_delete(block)
    del before


if __name__ == "__main__":
    main()
