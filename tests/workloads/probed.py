"""Waits until memprobe, which started the program, has placed its probes.

They are placed while PyTorch is imported, and later only on a busy machine. A test that compares every event sets
`WAIT_FOR_PROBES`.
"""

import ctypes
import os
import time

import torch

FUNCTION = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"

# The probe is on one of the function's first instructions.
LENGTH = 16


def wait():
    if not os.environ.get("WAIT_FOR_PROBES"):
        return
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so")
    function = getattr(ctypes.CDLL(library), FUNCTION)
    address = ctypes.cast(function, ctypes.c_void_p).value
    unprobed = code_in_file(address)
    end = time.monotonic() + 20
    while ctypes.string_at(address, LENGTH) == unprobed and time.monotonic() < end:
        time.sleep(0.005)
    # The others follow.
    time.sleep(0.3)


def code_in_file(address):
    """The bytes at an address as the mapped file has them, without the kernel's breakpoints."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, _, offset, *rest = line.split(maxsplit=5)
            start, end = (int(number, 16) for number in span.split("-"))
            if start <= address < end:
                with open(rest[-1].rstrip("\n"), "rb") as file:
                    file.seek(address - start + int(offset, 16))
                    return file.read(LENGTH)
    raise RuntimeError("the function is in no file")
