"""A server's work: sentences become vectors by a BERT of Sentence Transformers."""

import os
import tempfile

import sentence_transformers
import torch
import transformers
from sentence_transformers import models

import framework_truth as truth

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]


def main():
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
    )
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = os.path.join(folder, "vocab.txt")
        with open(vocabulary, "w") as file:
            file.write("\n".join(WORDS))
        transformers.BertModel(config).save_pretrained(folder)
        transformers.BertTokenizerFast(vocabulary).save_pretrained(folder)
        words = models.Transformer(folder, max_seq_length=32)
    pooling = models.Pooling(config.hidden_size)
    model = sentence_transformers.SentenceTransformer(modules=[words, pooling], device="cuda")
    truth.iteration_starts("embeddings.py:%d" % (answer.__code__.co_firstlineno + 1))
    for request in range(8):
        answer(model, ["a b c d"] * (8 + request))
        truth.iteration()
    truth.point("answered")


def answer(model, sentences):
    vectors = model.encode(sentences, batch_size=8, convert_to_tensor=True, show_progress_bar=False)
    return torch.nn.functional.normalize(vectors)


if __name__ == "__main__":
    truth.run(main, packages=["sentence-transformers"])
