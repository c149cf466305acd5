"""A module behind a mixin, trained and validated by Lightning's Trainer."""

import tempfile

import lightning
import torch
from torch import nn

import framework_truth as truth


class Reports:
    def report(self):
        return type(self).__name__


class Digits(Reports, lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
        self.register_buffer("scale", torch.ones(64))

    def forward(self, inputs):
        return self.layers(inputs * self.scale)

    def training_step(self, batch, at):
        inputs, labels = batch
        return nn.functional.cross_entropy(self(inputs), labels)

    def validation_step(self, batch, at):
        self.training_step(batch, at)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


class Steps(lightning.Callback):
    def on_train_batch_end(self, *others):
        truth.iteration()


def main():
    data = torch.utils.data.TensorDataset(torch.randn(64, 64), torch.randint(10, (64,)))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    model = Digits()
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="gpu",
            devices=1,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            callbacks=[Steps(), AtEnd()],
        )
        trainer.fit(model, loader, loader)


class AtEnd(lightning.Callback):
    """Lightning moves the model to the CPU when it is done."""

    def on_train_end(self, *others):
        truth.point("trained")


if __name__ == "__main__":
    truth.run(main, packages=["lightning"])
