"""Fills the caching allocator's pools in one of several ways and prints its own account of them.

Prints `READY` and waits for the file `begin`, before its first allocation. Then it fills the pools, writes
`torch.cuda.memory_snapshot()` to `truth.json`, prints `CHECKPOINT` and waits for the file `empty`. Then it calls
`empty_cache()`, writes what that returned to `returned.json`, prints `EMPTIED` and waits for the file `end`.
"""

import argparse
import json
import os
import sys
import time

import torch

MIB = 1 << 20


def block(size, device="cuda"):
    return torch.empty(size, dtype=torch.uint8, device=device)


def fragments():
    """Free blocks between live ones, in both pools, and segments without a live block."""
    kept = [block(size) for size in (1000, 3000, 700_000, 512, 90_000) for _ in range(9)]
    kept += [block(3 * MIB + 512 * number) for number in range(11)]
    whole = [block(64 * MIB), block(33 * MIB)]
    del whole, kept[::2]
    return kept


def streams():
    """Two streams with pools of their own; blocks that one used and the other may still use."""
    other = torch.cuda.Stream()
    kept = [block(5 * MIB), block(800)]
    with torch.cuda.stream(other):
        kept += [block(6 * MIB), block(6 * MIB), block(900), block(24 * MIB)]
    for used in kept[-4:]:
        used.record_stream(torch.cuda.current_stream())
    del kept[-1], kept[-2], used
    return [kept, other]


def graphs():
    """Private pools of CUDA graphs: in use, and left by a graph that is gone."""
    static = torch.zeros(MIB, device="cuda")
    kept = [static]
    for number in range(3):
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            doubled = static * 2
            kept.append(doubled + number)
            del doubled
        kept.append(graph)
    # Two pools stay without their graphs: one with a live block in it, one without.
    del graph, kept[-1], kept[3:5]
    return kept


def private():
    """Pools of the program, one of them with several streams and free blocks."""
    pool, other = torch.cuda.MemPool(), torch.cuda.MemPool()
    kept = [pool, other, block(2 * MIB)]
    with torch.cuda.use_mem_pool(pool):
        kept += [block(5 * MIB), block(1000), block(30 * MIB)]
    with torch.cuda.use_mem_pool(other):
        kept += [block(5 * MIB)]
    # A recorder reads the tables in this time. What is freed after it changes no segment.
    time.sleep(1.5)
    del kept[3], kept[-1]
    return kept


def expandable():
    """Ranges of expandable segments, some of whose pages are unused."""
    kept = [block(size) for size in (30 * MIB, 50 * MIB, 20 * MIB, 70 * MIB, 10 * MIB)]
    kept += [block(700_000) for _ in range(20)]
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        kept.append(block(45 * MIB))
    del kept[1], kept[2], kept[5:17]
    return [kept, other]


def devices():
    return [fragments(), block(40 * MIB, "cuda:1"), block(900, "cuda:1")]


def many():
    """So many blocks that a reading of them takes a while, in which they change."""
    kept = []
    for number in range(80_000):
        kept.append(block(1000 if number % 100 else 2 * MIB))
        if number % 3 == 0:
            kept[number // 2] = None
        if number % 8000 == 0:
            time.sleep(0.2)
    return kept


CASES = [fragments, streams, graphs, private, expandable, devices, many]


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)


def account():
    devices = {}
    for device in range(torch.cuda.device_count()):
        if torch.cuda.memory_reserved(device):
            stats = torch.cuda.memory_stats(device)
            devices[device] = {
                "allocated": torch.cuda.memory_allocated(device),
                "reserved": torch.cuda.memory_reserved(device),
                "inactive_split": stats["inactive_split_bytes.all.current"],
                "requested": stats.get("requested_bytes.all.current"),
            }
    segments = torch.cuda.memory_snapshot()
    for segment in segments:
        address = segment["address"]
        for part in segment["blocks"]:
            # PyTorch 2.0 gives blocks no address.
            part["address"] = address
            address += part["size"]
            part.pop("frames", None)
            part.pop("history", None)
        segment.pop("frames", None)
    return {"devices": devices, "segments": segments}


def write(path, content):
    with open(path + ".new", "w") as file:
        json.dump(content, file)
    os.rename(path + ".new", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", required=True, choices=[case.__name__ for case in CASES])
    parser.add_argument("--folder", required=True)
    options = parser.parse_args()
    case = next(case for case in CASES if case.__name__ == options.case)
    at = lambda name: os.path.join(options.folder, name)
    torch.cuda.init()
    print("READY", flush=True)
    wait_for(at("begin"))
    kept = case()
    before = account()
    write(at("truth.json"), before)
    print("CHECKPOINT", flush=True)
    wait_for(at("empty"))
    torch.cuda.empty_cache()
    after = account()
    left = {device: after["devices"].get(device, {}).get("reserved", 0) for device in before["devices"]}
    returned = {device: truth["reserved"] - left[device] for device, truth in before["devices"].items()}
    write(at("returned.json"), returned)
    print("EMPTIED", flush=True)
    wait_for(at("end"))
    del kept


if __name__ == "__main__":
    sys.exit(main())
