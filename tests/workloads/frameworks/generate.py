"""A Llama that answers by `generate()`, with a dynamic and with a static cache.

A simulated GPU computes nothing, so that `generate()` never finds its end there. An exception ends each answer.
"""

import contextlib

import torch
import transformers

import framework_truth as truth


def main():
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    model = transformers.LlamaForCausalLM(config).cuda().eval()
    truth.iteration_starts("generate.py:%d" % (answer.__code__.co_firstlineno + 2))
    for request in range(8):
        words = torch.randint(256, (2, 8 + request), device="cuda")
        answer(model, words, "static" if request % 2 else None)
        truth.iteration()
    truth.point("answered")


class Enough(Exception):
    pass


class After(transformers.StoppingCriteria):
    def __init__(self, length):
        self.length = length

    def __call__(self, words, scores, **others):
        if words.shape[1] >= self.length:
            raise Enough
        return torch.zeros(len(words), dtype=torch.bool, device=words.device)


def answer(model, words, cache):
    with contextlib.suppress(Enough):
        model.generate(
            words,
            attention_mask=torch.ones_like(words),
            max_new_tokens=12,
            do_sample=False,
            pad_token_id=0,
            cache_implementation=cache,
            disable_compile=True,
            stopping_criteria=[After(words.shape[1] + 6)],
        )


if __name__ == "__main__":
    truth.run(main, packages=["transformers"])
