"""Makes CPU tensors, and writes down what PyTorch's own profiler saw of their memory.

    python cpu_tensors.py --out log.json [--wait-file F]

What is written, as JSON:

    begin_ns, end_ns  the time that the profiler looked on, by CLOCK_MONOTONIC
    events            [{addr, bytes}]: blocks handed out, and taken back (negative), in order
    tensors           [{addr, shape, dtype, bytes}]: what is live at the end
"""

import argparse
import json
import os
import tempfile
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--wait-file")
options = parser.parse_args()


def now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def storage(tensor):
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()


def train(steps):
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(32, 64)
    for _ in range(steps):
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def keep():
    kept = [
        torch.empty(5, 7, dtype=torch.float64),
        torch.zeros(1000, 3),
        torch.empty((), dtype=torch.int64),
        torch.empty(3, 2, dtype=torch.bool),
        torch.empty_strided((3, 5), (32, 2)),
        torch.empty(4, 3, 16, 16, memory_format=torch.channels_last),
    ]
    kept.append(torch.empty_like(kept[1]))
    return kept


def profiled(body):
    """What `body` gives, and the profiler's events of memory."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        begin = now()
        result = body()
        end = now()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profile.export_chrome_trace(path)
        with open(path) as file:
            trace = json.load(file)["traceEvents"]
    memory = [it for it in trace if it.get("name") == "[memory]"]
    memory.sort(key=lambda it: it.get("ts", 0))
    events = [
        {"addr": it["args"]["Addr"], "bytes": it["args"]["Bytes"]}
        for it in memory
        if it["args"]["Device Type"] == 0
    ]
    return result, begin, end, events


def body():
    train(3)
    return keep()


# From before the probes, where memprobe attaches.
early = [torch.ones(100, 100) for _ in range(3)]
print("READY", os.getpid(), flush=True)
while options.wait_file and not os.path.exists(options.wait_file):
    time.sleep(0.005)
# The first use of the profiler makes tensors of its own.
profiled(lambda: None)
del early[0]
kept, begin, end, events = profiled(body)
log = {
    "begin_ns": begin,
    "end_ns": end,
    "events": events,
    "tensors": [
        {
            "addr": storage(it).data_ptr(),
            "shape": list(it.shape),
            "dtype": str(it.dtype)[len("torch.") :],
            "bytes": storage(it).nbytes(),
        }
        for it in kept
    ],
}
with open(options.out + ".partial", "w") as file:
    json.dump(log, file)
os.replace(options.out + ".partial", options.out)
