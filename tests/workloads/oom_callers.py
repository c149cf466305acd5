"""Runs out of GPU memory for every cause of out_of_memory.py, in one kind of caller after the other.

    python oom_callers.py --dumped LOG --pools LIBRARY                                  the callers of one machine
    python -m torch.distributed.run --nproc-per-node 6 oom_callers.py (the same)        a rank for each cause

Callers: `uncaught` (a process for each cause, which ends with the error), `caught` (one process that catches each and
tries a smaller request), `thread` (a thread for each cause in one process), `worker` (a DataLoader worker for each) and
`rank`. Each has GPUs of its own. LOG has a line `CAUSE PID ...` for each dump (`watch --on-oom`).
Prints `CASE caller cause pid device` for each error, `SAVED caller cause milliseconds` once its dump is there, before
the process goes on or ends, and `ENDED cause status` for each process of `uncaught`.
"""

import argparse
import atexit
import gc
import multiprocessing
import os
import sys
import threading
import time

import torch

from out_of_memory import CAUSES, hold

# A process that stood still before it grew is not seen to grow, so that this is its first cause. The pool of `asleep`
# cannot be given back: it is the last one.
NAMES = sorted(CAUSES, key=lambda cause: (cause != "growth", cause == "asleep"))
CALLERS = ("uncaught", "caught", "thread", "worker", "rank")


class Failure:
    """One request that fails: its cause, its caller, and where the dumps are listed."""

    def __init__(self, cause, caller, options):
        self.cause, self.caller, self.log = cause, caller, options.dumped
        # Ranks run at once, each on a GPU of its own.
        self.device = CALLERS.index(caller) + (NAMES.index(cause) if caller == "rank" else 0)

    def ask(self, kept):
        torch.cuda.set_device(self.device)
        self.earlier = self.dumps()
        print("CASE", self.caller, self.cause, os.getpid(), self.device, flush=True)
        CAUSES[self.cause](kept)

    def dumps(self):
        """Number of dumps of this process."""
        if not os.path.exists(self.log):
            return 0
        with open(self.log) as log:
            return sum(line.split()[1] == str(os.getpid()) for line in log if line.endswith("\n"))

    def wait_for_dump(self):
        begun = time.monotonic()
        while self.dumps() == self.earlier:
            time.sleep(0.01)
        milliseconds = 1000 * (time.monotonic() - begun)
        print("SAVED", self.caller, self.cause, f"{milliseconds:.0f}", flush=True)


def release(kept):
    kept.clear()
    gc.collect()
    torch.cuda.empty_cache()


def uncaught(options):
    """The process of each cause ends with the error, as a program does that knows nothing of it."""
    for cause in NAMES:
        child = os.fork()
        if not child:
            failure = Failure(cause, "uncaught", options)
            atexit.register(failure.wait_for_dump)
            failure.ask([])
            os._exit(0)
        print("ENDED", cause, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def caught(options):
    kept = []
    for cause in NAMES:
        failure = Failure(cause, "caught", options)
        try:
            failure.ask(kept)
        except torch.cuda.OutOfMemoryError:
            failure.wait_for_dump()
        release(kept)
        hold(4)


def thread(options):
    def run(failure):
        try:
            failure.ask([])
        finally:
            failure.wait_for_dump()

    for cause in NAMES:
        running = threading.Thread(target=run, args=(Failure(cause, "thread", options),))
        running.start()
        running.join()
        release([])


class Failing(torch.utils.data.Dataset):
    def __init__(self, failure):
        self.failure = failure

    def __len__(self):
        return 1

    def __getitem__(self, index):
        try:
            self.failure.ask([])
        finally:
            self.failure.wait_for_dump()


def worker(options):
    for cause in NAMES:
        # One of them is started anew, as programs do whose workers use CUDA. The others are forks, which start sooner.
        context = "spawn" if cause == "fragmentation" else "fork"
        data = Failing(Failure(cause, "worker", options))
        try:
            list(torch.utils.data.DataLoader(data, num_workers=1, multiprocessing_context=context))
        except torch.cuda.OutOfMemoryError as error:
            print("the worker says:", str(error).splitlines()[0], flush=True)
        # The error's frames keep the loader, whose worker ends with it.
        gc.collect()
        for child in multiprocessing.active_children():
            child.join()


def rank(options):
    failure = Failure(NAMES[int(os.environ["LOCAL_RANK"])], "rank", options)
    try:
        failure.ask([])
    finally:
        failure.wait_for_dump()
        # torchrun ends all ranks when the first has failed.
        open(f"{options.dumped}.{failure.cause}", "w").close()
        while not all(os.path.exists(f"{options.dumped}.{cause}") for cause in NAMES):
            time.sleep(0.01)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dumped", required=True)
    parser.add_argument("--pools", required=True, help="library with the allocator of the pool that sleeps")
    options = parser.parse_args()
    if "LOCAL_RANK" in os.environ:
        return rank(options)
    children = []
    for caller in (uncaught, caught, thread, worker):
        # CUDA is not initialized here, and the import of PyTorch is shared.
        child = os.fork()
        if not child:
            caller(options)
            sys.stdout.flush()
            # The pool that sleeps outlives its allocator otherwise.
            os._exit(0)
        children.append(child)
    failed = [child for child in children if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]
    raise SystemExit(len(failed))


if __name__ == "__main__":
    main()
