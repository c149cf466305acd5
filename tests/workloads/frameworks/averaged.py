"""A vision transformer of timm with its EMA copy, its optimizer and its schedule."""

import timm
import timm.optim
import timm.utils
import torch

import framework_truth as truth


def main():
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=64, num_classes=10, depth=2, embed_dim=48, num_heads=3
    ).cuda()
    ema = timm.utils.ModelEmaV3(model, decay=0.9)
    optimizer = timm.optim.create_optimizer_v2(model, opt="adamw", lr=1e-3)
    for step in range(8):
        images = torch.rand(4, 3, 64, 64, device="cuda")
        labels = torch.randint(10, (4,), device="cuda")
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        ema.update(model, step=step)
        truth.iteration()
    with torch.no_grad():
        ema.module(images)
    truth.point("trained")


if __name__ == "__main__":
    truth.run(main, packages=["timm"])
