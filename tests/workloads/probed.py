"""Waits until memprobe, which started the program, has placed its probes.

They are placed while PyTorch is imported, and later only on a busy machine. A test that compares every event sets
`WAIT_FOR_PROBES`.
"""

import ctypes
import os
import time

import torch

FUNCTION = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"

# What the kernel writes at a probe on x86-64.
BREAKPOINT = b"\xcc"


def wait():
    if not os.environ.get("WAIT_FOR_PROBES"):
        return
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so")
    function = getattr(ctypes.CDLL(library), FUNCTION)
    address = ctypes.cast(function, ctypes.c_void_p).value
    end = time.monotonic() + 20
    while ctypes.string_at(address, 1) != BREAKPOINT and time.monotonic() < end:
        time.sleep(0.005)
    # The others follow.
    time.sleep(0.3)
