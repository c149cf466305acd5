"""ResNet-18 and SGD under automatic mixed precision, with augmented images."""

import torch
import torchvision
from torchvision.transforms import v2

import framework_truth as truth


def main():
    model = torchvision.models.resnet18(num_classes=10).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    augment = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.Normalize([0.5] * 3, [0.25] * 3)])
    for _ in range(8):
        images = augment(torch.rand(4, 3, 64, 64, device="cuda"))
        labels = torch.randint(10, (4,), device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        truth.iteration()
    truth.point("trained")


if __name__ == "__main__":
    truth.run(main, packages=["torchvision"])
