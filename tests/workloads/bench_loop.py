"""A training loop that is told over standard input what to run next, for benchmarks.

Every mode is measured in one process, so that what is compared differs in nothing else. Each
request is a line on standard input, each answer a line of JSON on standard output:

    block RECORDER WARM ITERATIONS  train under one of PyTorch's own recorders, or under none
    pace RATE SECONDS               train at RATE allocator events a second
    hold DEPTH COUNT                allocate COUNT blocks under DEPTH Python frames, and keep them
    release                         free them
    quit
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import time

import torch
from torch import nn

import gpt

# The default depth of recursion, and room for the frames of torch itself.
sys.setrecursionlimit(2000)


def build_model(width, layers):
    blocks = []
    for _ in range(layers):
        blocks += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*blocks).to("cuda")


class Loop:
    """An 8-layer perceptron with Adam, small: nothing hides what a profiler costs."""

    WIDTH = 128
    BATCH = 32

    def __init__(self, gpu_time=0.0):
        self.gpu_time = gpu_time
        self.model = self.build()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.held = []

    def build(self):
        self.x = torch.randn(self.BATCH, self.WIDTH, device="cuda")
        return build_model(self.WIDTH, layers=8)

    def loss(self):
        return (self.model(self.x) - self.x).pow(2).mean()

    def step(self):
        self.loss().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.gpu_time:
            time.sleep(self.gpu_time)

    def block(self, recorder, warm, iterations):
        with RECORDERS[recorder]():
            for _ in range(int(warm)):
                self.step()
            events = events_so_far()
            times = []
            for _ in range(int(iterations)):
                start = time.perf_counter()
                self.step()
                times.append(time.perf_counter() - start)
            events = events_so_far() - events
        return {
            "iterations": len(times),
            "events": events,
            "mean_us": 1e6 * statistics.fmean(times),
            "median_us": 1e6 * statistics.median(times),
        }

    def pace(self, rate, seconds):
        rate, seconds = float(rate), float(seconds)
        first = events_so_far()
        start = time.perf_counter()
        while (now := time.perf_counter() - start) < seconds:
            ahead = (events_so_far() - first) / rate - now
            if ahead > 0:
                time.sleep(ahead)
            else:
                self.step()
        return {"events": events_so_far() - first, "seconds": time.perf_counter() - start}

    def hold(self, depth, count):
        missing = int(depth) - depth_here() - 1
        events = events_so_far()
        self.held = descend(missing, int(count))
        return {"events": events_so_far() - events}

    def release(self):
        events = events_so_far()
        self.held = []
        return {"events": events_so_far() - events}


class GptLoop(Loop):
    """Six layers of a GPT with Adam: more of a step is Python and operators than in the perceptron."""

    def build(self):
        self.tokens = torch.randint(0, 512, (4, 64), device="cuda")
        return gpt.GPT(vocabulary=512, length=64, width=64, layers=6, heads=4).to("cuda")

    def loss(self):
        return self.model(self.tokens, self.tokens)[1]


class Nest(nn.Module):
    """A layer, and the rest of the model within it."""

    def __init__(self, width, inner):
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.inner = inner

    def forward(self, x):
        x = torch.relu(self.layer(x))
        return x if self.inner is None else self.inner(x)


class NestedLoop(Loop):
    """As many layers as in four of the perceptrons, each within the one before, with three Python frames each."""

    def build(self):
        self.x = torch.randn(self.BATCH, self.WIDTH, device="cuda")
        model = None
        for _ in range(32):
            model = Nest(self.WIDTH, model)
        return model.to("cuda")


MODELS = {"mlp": Loop, "gpt": GptLoop, "nested": NestedLoop}


def descend(further, count):
    """`further` frames more, and then `count` blocks, all from one line."""
    if further > 0:
        return descend(further - 1, count)
    blocks = []
    while len(blocks) < count:
        blocks.append(torch.empty(128, device="cuda"))
    return blocks


def depth_here():
    """The number of Python frames, the caller's the innermost."""
    frame, depth = sys._getframe(1), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


def events_so_far():
    """Blocks handed out and taken back: what the allocator reports to profilers."""
    stats = torch.cuda.memory_stats()
    return stats["allocation.all.allocated"] + stats["allocation.all.freed"]


@contextlib.contextmanager
def history(stacks):
    # As `torch.cuda.memory._record_memory_history()` records unless told otherwise, but for the
    # stacks.
    torch.cuda.memory._record_memory_history(stacks=stacks)
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def torch_profiler():
    activities = [torch.profiler.ProfilerActivity.CPU]
    return torch.profiler.profile(activities=activities, profile_memory=True)


RECORDERS = {
    "none": contextlib.nullcontext,
    "history-python": lambda: history("python"),
    "history-all": lambda: history("all"),
    "torch-profiler": torch_profiler,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), default="mlp")
    parser.add_argument("--gpu-time", type=float, default=0.0, help="seconds that a step waits, as for a GPU")
    options = parser.parse_args()
    # Where autograd's thread runs would depend on the profiler: it is up to 25 % faster on the main thread's CPU.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    loop = MODELS[options.model](options.gpu_time)
    for _ in range(50):
        loop.step()
    answer = {"pid": os.getpid()}
    while True:
        print(json.dumps(answer), flush=True)
        verb, *arguments = sys.stdin.readline().split() or ["quit"]
        if verb == "quit":
            break
        answer = getattr(loop, verb)(*arguments)
    # Autograd's threads still drop Python objects; an interpreter that ends now may abort.
    time.sleep(0.2)


if __name__ == "__main__":
    main()
