"""A training loop that accelerate prepares, with accumulation and clipping."""

import accelerate
import torch
from torch import nn

import framework_truth as truth


def main():
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4)
    data = torch.utils.data.TensorDataset(torch.randn(128, 64), torch.randint(10, (128,)))
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            truth.iteration()
    truth.point("trained")


if __name__ == "__main__":
    truth.run(main, packages=["accelerate"])
