"""A model in DeepSpeed's engine: ZeRO stage 1 on one rank."""

import os

import deepspeed
import torch
from torch import nn

import framework_truth as truth


def main():
    os.environ.update(
        RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29514"
    )
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    settings = {
        "train_batch_size": 16,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
    }
    optimizer = torch.optim.Adam(model.parameters())
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    for _ in range(8):
        inputs = torch.randn(16, 64, device="cuda", dtype=torch.bfloat16)
        engine.backward(engine(inputs).square().mean())
        engine.step()
        truth.iteration()
    truth.point("trained")


if __name__ == "__main__":
    truth.run(main, packages=["deepspeed"])
