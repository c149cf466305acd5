"""A GPT-2 with LoRA adapters of PEFT."""

import peft
import torch
import transformers

import framework_truth as truth


def main():
    config = transformers.GPT2Config(
        vocab_size=256, n_positions=32, n_embd=64, n_layer=2, n_head=4
    )
    lora = peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)
    model = peft.get_peft_model(transformers.GPT2LMHeadModel(config), lora).cuda()
    trained = [it for it in model.parameters() if it.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    for _ in range(8):
        words = torch.randint(256, (4, 16), device="cuda")
        model(input_ids=words, labels=words).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        truth.iteration()
    truth.point("trained")


if __name__ == "__main__":
    truth.run(main, packages=["peft", "transformers"])
