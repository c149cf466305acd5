"""Ends each workload without what only costs time or aborts: Python imports this module at its start.

The collector of an interpreter that ends looks at each of the 400,000 objects of PyTorch several times: a fifth of
the CPU time of a process that imports PyTorch and ends (0.8 s of 3.6). What reference counts free is freed as
before; a workload whose end matters takes it back by `atexit.unregister(gc.freeze)`.

A thread of autograd drops Python objects after `backward` has returned. CPython before 3.14 ends a thread that wants
the interpreter while it finalizes (`pthread_exit`), and PyTorch's thread then aborts the process: "terminate called
without an active exception".

While PyTorch is imported hardly anything becomes garbage, and the collector looks at all that is there again and
again: a fifth of the CPU time of an import.
"""

import atexit
import gc
import importlib.machinery
import os
import sys
import time

# The packages that take seconds to import; the first optimizer imports the second.
LARGE = ("torch", "torch._dynamo")


class WithoutCollector:
    """Finds the packages of LARGE as Python does, and suspends the collector while their modules are made."""

    @staticmethod
    def find_spec(name, path, target=None):
        if name not in LARGE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        loader = spec and spec.loader
        if not loader:
            return None

        def exec_module(module):
            del loader.exec_module
            was_enabled = gc.isenabled()
            gc.disable()
            try:
                loader.exec_module(module)
            finally:
                if was_enabled:
                    gc.enable()

        loader.exec_module = exec_module
        return spec


def wait_for_autograd():
    """Waits, at most some 5 s, until all threads of autograd have slept for 10 ms in which the interpreter was free."""
    before = switches_of_autograd()
    for _ in range(500 if before else 0):
        time.sleep(0.01)
        now = switches_of_autograd()
        if now == before and all(state.startswith("S") for state, *_ in now.values()):
            return
        before = now


def switches_of_autograd():
    """Returns the state of each thread of autograd, and how often it left its processor, by its id."""
    switches = {}
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/status") as file:
                status = dict(line.split(":", 1) for line in file)
        except OSError:
            continue  # It has ended.
        if status["Name"].strip().startswith("pt_autograd"):
            fields = ("State", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
            switches[thread] = [status[field].strip() for field in fields]
    return switches


sys.meta_path.insert(0, WithoutCollector)
atexit.register(gc.freeze)
atexit.register(wait_for_autograd)

# An interpreter from which others are forked; see there.
if "MEMPROBE_FORK_SERVER" in os.environ:
    import fork_server

    fork_server.serve_before_the_script()
