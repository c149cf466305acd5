"""Ranks that do hardly more than allocate, all at once; each writes down what its allocator says.

They are forks of one process, made before CUDA is used, so that PyTorch is imported once. When all have
done what they were told, each allocates one block more: however much was lost before, that is told.
"""

import argparse
import json
import os
import time

import torch

# So many blocks of each rank are live.
KEPT = 50

SIZES = (1, 200, 1_000, 4_000, 30_000, 100_000, 600_000)


def floats(count):
    return torch.empty(count, device="cuda")


def halves(count):
    return torch.empty((count, 2), device="cuda", dtype=torch.float16)


def bytes_of(count):
    return torch.empty(
        4 * count,
        device="cuda",
        dtype=torch.uint8,
    )


MAKERS = (floats, halves, bytes_of)


def rush(kept, events, rate):
    """Allocates and frees until there were so many events; `rate` a second at most, 0 for no bound."""
    begun = time.monotonic()
    for at in range(events // 2):
        kept[at % KEPT] = MAKERS[at % 3](SIZES[at % 7])
        if rate and at % 32 == 31:
            ahead = begun + 2 * (at + 1) / rate - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)


def write_down(folder, rank, begun, ended):
    stats = torch.cuda.memory_stats()
    counted = ("allocation.all.allocated", "allocation.all.freed", "segment.all.allocated", "segment.all.freed")
    ledger = {
        "pid": os.getpid(),
        "rank": rank,
        "begun": begun,
        "ended": ended,
        "events": sum(stats[name] for name in counted),
        "allocated": stats["allocated_bytes.all.current"],
        "reserved": stats["reserved_bytes.all.current"],
        "peak_allocated": stats["allocated_bytes.all.peak"],
        "peak_reserved": stats["reserved_bytes.all.peak"],
    }
    path = os.path.join(folder, str(rank))
    with open(path + ".partial", "w") as file:
        json.dump(ledger, file)
    os.replace(path + ".partial", path + ".json")


class Gate:
    """Where ranks say that they are there, and wait until they are let through together."""

    def __init__(self):
        self.here, self.tell_here = os.pipe()
        self.open, self.keep_shut = os.pipe()

    def wait(self):
        """Of a rank: says that it is there and waits."""
        os.write(self.tell_here, b".")
        os.read(self.open, 1)

    def wait_for(self, ranks):
        """Of the one who opens: waits until so many ranks are there."""
        for _ in range(ranks):
            if not os.read(self.here, 1):
                raise RuntimeError("a rank ended before the others")

    def let_through(self):
        os.close(self.keep_shut)


def run(rank, gates, options):
    torch.cuda.set_device(rank % torch.cuda.device_count())
    kept = [floats(1) for _ in range(KEPT)]
    for gate in gates:
        os.close(gate.keep_shut)
    gates[0].wait()
    begun = time.monotonic()
    rush(kept, options.events, options.rate)
    ended = time.monotonic()
    gates[1].wait()
    kept.append(floats(1))
    write_down(options.folder, rank, begun, ended)
    gates[2].wait()
    # Nothing is given back: what memprobe saw last is what was written down.
    os._exit(0)


def wait_for(path):
    while path and not os.path.exists(path):
        time.sleep(0.005)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True, help="where each rank writes down what its allocator says")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--events", type=int, default=50_000, help="of each rank, about")
    parser.add_argument("--rate", type=float, default=0, help="events a second of each rank at most")
    parser.add_argument("--go", help="begin when this file exists")
    parser.add_argument("--until", help="end when this file exists")
    options = parser.parse_args()

    gates = [Gate() for _ in range(3)]
    ranks = []
    for rank in range(options.ranks):
        pid = os.fork()
        if pid == 0:
            run(rank, gates, options)
        ranks.append(pid)
    # Of whoever ends too early a gate must hear.
    for gate in gates:
        os.close(gate.tell_here)
    gates[0].wait_for(len(ranks))
    print(f"ready {os.getpid()}", flush=True)
    wait_for(options.go)
    gates[0].let_through()
    gates[1].wait_for(len(ranks))
    # Whoever listens catches up meanwhile.
    time.sleep(0.5)
    gates[1].let_through()
    gates[2].wait_for(len(ranks))
    print("over", flush=True)
    wait_for(options.until)
    gates[2].let_through()
    failed = [pid for pid in ranks if os.waitpid(pid, 0)[1] != 0]
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
