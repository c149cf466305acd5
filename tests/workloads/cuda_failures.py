"""Asks CUDA for more than there is, beside PyTorch's caching allocator, in a process with `CUDASIM_MEMORY=512m`.

Options: --library PATH (built from programs/pluggable.c), --by main | thread (who asks), --allocator (the caching
allocator gives up at the end, too). The caching allocator first handles a failed request on its own.
Prints `ASKED` after the library's failure.
"""

import argparse
import ctypes
import threading

import torch

MIB = 1 << 20


def hold(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def retry():
    """CUDA has no memory for the second tensor until the allocator has returned the first one's segment."""
    first = hold(300)
    del first
    return hold(400)


def ask(library):
    plug_malloc = ctypes.CDLL(library).plug_malloc
    plug_malloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    plug_malloc.restype = ctypes.c_void_p
    assert plug_malloc(4096 * MIB, 0, None) is None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--by", choices=["main", "thread"], default="main")
    parser.add_argument("--allocator", action="store_true")
    options = parser.parse_args()
    kept = retry()
    assert torch.cuda.memory_stats()["num_alloc_retries"] == 1
    if options.by == "thread":
        thread = threading.Thread(target=ask, args=(options.library,))
        thread.start()
        thread.join()
    else:
        ask(options.library)
    print("ASKED", flush=True)
    if options.allocator:
        try:
            hold(2048)
        except torch.cuda.OutOfMemoryError:
            pass
    del kept


main()
