"""GPT-2 trained by transformers.Trainer, with accumulation, clipping and evaluation."""

import tempfile

import torch
import transformers

import framework_truth as truth


class Texts(torch.utils.data.Dataset):
    def __init__(self, size):
        self.texts = torch.randint(256, (size, 32))

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, at):
        return {"input_ids": self.texts[at], "labels": self.texts[at]}


class Steps(transformers.TrainerCallback):
    def on_step_end(self, arguments, state, control, **others):
        truth.iteration()


def main():
    config = transformers.GPT2Config(
        vocab_size=256, n_positions=32, n_embd=64, n_layer=2, n_head=4
    )
    model = transformers.GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            max_steps=8,
            eval_strategy="steps",
            eval_steps=4,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(
            model, arguments, train_dataset=Texts(128), eval_dataset=Texts(8), callbacks=[Steps()]
        )
        trainer.train()
        truth.point("trained")


if __name__ == "__main__":
    truth.run(main, packages=["transformers", "accelerate"])
