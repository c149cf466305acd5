"""A server in the middle of a call: its model and caches are variables of many frames, of libraries too."""

import threading

import torch
from torch import nn

import tensor_reference

# A library's part of the call. Its file makes it one.
LIBRARY = """
def generate(model, points, expected, **arguments):
    scores = [zeros(104)]
    return sample(model, points, expected, scores, arguments)

def sample(model, points, expected, scores, arguments):
    first = scores[0]
    return model(points, expected, **arguments)
"""


def made(size):
    return torch.zeros(size, device="cuda")


class Cache:
    def __init__(self, first):
        self.keys = [made(first)]
        self.last = made(first + 1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(made(101))
        self.plain = made(102)

    def forward(self, points, expected, past, own):
        weight, plain, keys, last = self.weight, self.plain, past.keys[0], past.last
        inner = own.keys
        points.at("within", expected)
        return weight, plain, keys, last, inner


class Server:
    def __init__(self):
        self.caches = {"first": Cache(110)}


local = threading.local()


def in_thread(ready, over):
    local.theirs = made(130)
    ready.set()
    over.wait()


model = Model()
server = Server()

EXPECTED = [
    ("model.plain", [102]),
    ("calls_in_progress.py:* main() -> own.keys[0]", [120]),
    ("server.caches['first'].keys[0]", [110]),
    ("server.caches['first'].last", [111]),
    ("modeling.py:* generate() -> scores[0]", [104]),
    ("local.theirs", [130]),
]


def main(points, options):
    library = {"zeros": made}
    exec(compile(LIBRARY, "/site-packages/served/modeling.py", "exec"), library)
    own = Cache(120)
    ready, over = threading.Event(), threading.Event()
    threading.Thread(target=in_thread, args=(ready, over)).start()
    ready.wait()
    library["generate"](model, points, EXPECTED, past=server.caches["first"], own=own)
    over.set()
    return own


if __name__ == "__main__":
    tensor_reference.run(main)
