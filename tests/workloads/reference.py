"""Runs a training script under PyTorch's own memory recorder and writes what it saw.

    python reference.py --out ref.json [--wait-file F] [--pickle P] workload.py [arguments of the workload]

PyTorch records every allocation and free together with the Python stack. A test runs memprobe
on the same process and compares. With `--wait-file` the driver prints `ready PID` once CUDA is
initialised and nothing is allocated yet, and goes on when the file exists.

What is written, as JSON:

    torch, python   versions
    pid             process id
    arguments       the workload's command line
    exit_status     0, or what the workload gave to sys.exit
    end_ns          when the recording ended, by CLOCK_MONOTONIC; what PyTorch 2.1 frees to make its
                    snapshot comes after it
    devices         [{device, events: [{action, addr, size, stream, time_us, frames}]}]
                    size is what the tensor asked for; the allocator rounds it up (see `live`);
                    time_us is 0 where PyTorch keeps no times
                    frames are innermost first: {file, line, function}; empty where PyTorch saw
                    no Python on the thread (autograd's threads)
    checkpoints     [{label, device, allocated, requested, reserved, monotonic_ns}], see
                    checkpoints.py; monotonic_ns is CLOCK_MONOTONIC
    final           [{device, allocated, requested, reserved, live, stats}]; live is
                    [{addr, size, requested}]: blocks not yet freed, with the size that the
                    allocator made of the request; stats is torch.cuda.memory_stats()
"""

import argparse
import json
import os
import pickle
import runpy
import sys
import time

import torch

import checkpoints

# More than any workload makes; PyTorch forgets the oldest events beyond it.
MAX_EVENTS = 2_000_000

# PyTorch 2.0 records one device a call, by other arguments, and keeps no times
# (torch/cuda/memory.py@v2.0.1 and @v2.1.2).
RECORDS_EVERY_DEVICE = int(torch.__version__.split(".")[1]) >= 1


def parse_arguments():
    parser = argparse.ArgumentParser(description="Run a workload under PyTorch's memory recorder.")
    parser.add_argument("--out", required=True, help="where to write the JSON")
    parser.add_argument("--wait-file", help="go on only when this file exists")
    parser.add_argument("--pickle", help="where to pickle PyTorch's own snapshot")
    parser.add_argument("workload", help="the script to run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    return parser.parse_args()


def start_recording():
    """Initialises CUDA on every device, without allocating, and turns PyTorch's recorder on."""
    torch.cuda.init()
    if not RECORDS_EVERY_DEVICE:
        for device in range(torch.cuda.device_count()):
            torch.cuda.memory._record_memory_history(
                True,
                record_context=True,
                trace_alloc_max_entries=MAX_EVENTS,
                trace_alloc_record_context=True,
                device=device,
            )
        return
    torch.cuda.memory._record_memory_history(
        enabled="all", context="all", stacks="python", max_entries=MAX_EVENTS
    )


def stop_recording():
    if RECORDS_EVERY_DEVICE:
        torch.cuda.memory._record_memory_history(enabled=None)
        return
    for device in range(torch.cuda.device_count()):
        torch.cuda.memory._record_memory_history(False, device=device)


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.005)


def totals(device):
    """The caching allocator's own totals, in bytes."""
    stats = torch.cuda.memory_stats(device)
    return {
        "device": device,
        "allocated": stats.get("allocated_bytes.all.current", 0),
        "requested": stats.get("requested_bytes.all.current", 0),
        "reserved": stats.get("reserved_bytes.all.current", 0),
    }


class Checkpoints:
    """Keeps the totals of every device at the moments the workload marks."""

    def __init__(self):
        self.kept = []

    def record(self, label):
        now = time.monotonic_ns()
        for device in range(torch.cuda.device_count()):
            self.kept.append({"label": label, **totals(device), "monotonic_ns": now})


def run(workload, arguments):
    """Runs the script as __main__; returns its exit status and its namespace.

    The namespace keeps the script's globals, and so its tensors, alive until the snapshot.
    """
    sys.argv = [workload, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(workload))
    try:
        return 0, runpy.run_path(workload, run_name="__main__")
    except SystemExit as exit:
        if exit.code is None:
            return 0, {}
        if isinstance(exit.code, int):
            return exit.code, {}
        print(exit.code, file=sys.stderr)
        return 1, {}


def events_of(trace):
    return [
        {
            "action": entry["action"],
            "addr": entry.get("addr", 0),
            "size": entry["size"],
            "stream": entry["stream"],
            "time_us": entry.get("time_us", 0),
            "frames": [
                {"file": frame["filename"], "line": frame["line"], "function": frame["name"]}
                for frame in entry.get("frames", [])
            ],
        }
        for entry in trace
    ]


def live_blocks(snapshot, device):
    live = []
    for segment in snapshot["segments"]:
        if segment["device"] != device:
            continue
        # PyTorch 2.0 gives no address of a block; the blocks of a segment lie side by side.
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                live.append(
                    {
                        "addr": block.get("address", address),
                        "size": block["size"],
                        "requested": block["requested_size"],
                    }
                )
            address += block["size"]
    return live


def final_state():
    """The totals of every device, before a snapshot: that of 2.1 frees workspaces."""
    return [
        {**totals(device), "stats": dict(torch.cuda.memory_stats(device))}
        for device in range(torch.cuda.device_count())
    ]


def reference(kept, arguments, status, pickled=None):
    """What PyTorch recorded until now, and the state of every device."""
    torch.cuda.synchronize()
    end, final = time.monotonic_ns(), final_state()
    snapshot = torch.cuda.memory._snapshot()
    if pickled:
        # What `torch.cuda.memory._dump_snapshot()` does from PyTorch 2.1 on.
        with open(pickled, "wb") as file:
            pickle.dump(snapshot, file)
    for device, state in enumerate(final):
        state["live"] = live_blocks(snapshot, device)
    return {
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "pid": os.getpid(),
        "arguments": arguments,
        "exit_status": status,
        "end_ns": end,
        "devices": [
            {"device": device, "events": events_of(trace)}
            for device, trace in enumerate(snapshot["device_traces"])
        ],
        "checkpoints": kept.kept,
        "final": final,
    }


def write(path, account):
    """Writes JSON whole or not at all: a reader that sees the file sees all of it."""
    partial = path + ".partial"
    with open(partial, "w") as file:
        json.dump(account, file, separators=(",", ":"))
    os.replace(partial, path)


def main():
    options = parse_arguments()
    start_recording()
    print(f"ready {os.getpid()}", flush=True)
    if options.wait_file:
        wait_for(options.wait_file)

    kept = Checkpoints()
    checkpoints.recorder = kept.record
    status, namespace = run(options.workload, options.arguments)

    arguments = [options.workload, *options.arguments]
    write(options.out, reference(kept, arguments, status, options.pickle))
    stop_recording()
    del namespace
    sys.exit(status)


if __name__ == "__main__":
    main()
