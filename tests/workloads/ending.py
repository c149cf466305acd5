"""Ends slowly: Python waits in the middle of its shutdown, or the process once Python is gone.

Options: --at python (a destructor waits while Python shuts down) or exit (a handler of C's exit() waits afterwards)
Prints: PID, and READY with live tensors and objects, just before the end; ENDING from the destructor.
"""

import argparse
import atexit
import ctypes
import gc
import os
import sys

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--at", choices=["python", "exit"], required=True)
options = parser.parse_args()
atexit.unregister(gc.freeze)
libc = ctypes.CDLL(None)


class Waits:
    def __init__(self):
        self.write, self.wait = os.write, libc.pause

    def __del__(self):
        self.write(1, b"ENDING\n")
        self.wait()


tensors = [torch.ones(1000, device="cuda") for _ in range(100)]
objects = [[number] for number in range(50_000)]
if options.at == "python":
    # What a module of the standard library holds is freed after Python has begun to shut down.
    sys.waits = Waits()
else:
    getattr(libc, "__cxa_atexit")(libc.pause, None, None)
print("PID", os.getpid(), flush=True)
print("READY", flush=True)
