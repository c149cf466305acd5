"""A program that calls CUDA's driver itself, as JAX and inference engines do.

It holds 12 MiB, prints `ready` and waits for the file GO. Then it allocates 16 MiB more, and frees other memory. With
`--late` it prints `ready` without the driver, loads it once the file GO-driver is there, and waits for GO before it
allocates anything. With `--pytorch` it imports PyTorch at last, and makes a tensor."""

import argparse
import atexit
import ctypes
import glob
import os
import sysconfig
import time

MB = 1 << 20


def check(error):
    assert error == 0, error


def driver():
    folder = glob.glob(sysconfig.get_paths()["purelib"] + "/nvidia/cu*/lib")[0]
    library = ctypes.CDLL(folder + "/libcuda.so.1")
    for name in ["cuInit", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemAlloc_v2", "cuMemFree_v2"]:
        getattr(library, name).restype = check
    context = ctypes.c_void_p()
    library.cuInit(0)
    # NVIDIA's driver takes longer than this to begin and to end.
    time.sleep(0.2)
    atexit.register(time.sleep, 0.2)
    library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    library.cuCtxSetCurrent(context)
    return library


def weights(library, held):
    for _ in range(3):
        held.append(ctypes.c_ulonglong())
        library.cuMemAlloc_v2(ctypes.byref(held[-1]), ctypes.c_size_t(4 * MB))


def cache(library, held):
    for _ in range(2):
        held.append(ctypes.c_ulonglong())
        library.cuMemAlloc_v2(ctypes.byref(held[-1]), ctypes.c_size_t(8 * MB))


def scratch(library):
    for _ in range(10):
        pointer = ctypes.c_ulonglong()
        library.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(MB))
        library.cuMemFree_v2(pointer)


def wait(go):
    print("ready", flush=True)
    while go and not os.path.exists(go):
        time.sleep(0.01)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--go")
    arguments.add_argument("--late", action="store_true")
    arguments.add_argument("--pytorch", action="store_true")
    arguments.add_argument("--libraries", help="a folder with libraries of PyTorch, to load before the driver")
    given = arguments.parse_args()
    for name in ["libc10.so", "libtorch_python.so"] if given.libraries else []:
        ctypes.CDLL(f"{given.libraries}/{name}")
    if given.late:
        wait(given.go + "-driver")
    library = driver()
    if given.late:
        wait(given.go)
    held = []
    weights(library, held)
    if not given.late:
        wait(given.go)
    cache(library, held)
    scratch(library)
    if given.pytorch:
        import torch

        held.append(torch.empty(3 * MB, dtype=torch.uint8, device="cuda"))


if __name__ == "__main__":
    main()
