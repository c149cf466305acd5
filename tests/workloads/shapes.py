"""Makes tensors in every way that PyTorch has, and writes down what each one is.

    python shapes.py --out log.json

What is written, as JSON: a list of {what, begin_ns, end_ns, addr, shape, dtype, requested}. Between
the two moments (CLOCK_MONOTONIC) the allocator handed out one block at that address. `shape` is null
where it was for no tensor; `requested` is null where only the allocator knows.
"""

import argparse
import contextlib
import json
import os
import time

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
    torch.float64, torch.complex64, torch.complex128, torch.bool, torch.bfloat16,
]  # fmt: skip
log = []


def now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def storage(tensor):
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()


def note(what, begin, end, tensor):
    log.append(
        {
            "what": what,
            "begin_ns": begin,
            "end_ns": end,
            "addr": storage(tensor).data_ptr(),
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype)[len("torch.") :],
            "requested": storage(tensor).nbytes(),
        }
    )


class Noting(TorchDispatchMode):
    """Writes down what comes out of each operation, where its memory is new."""

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        begin = now()
        result = function(*arguments, **(named or {}))
        end = now()
        given, _ = tree_flatten((arguments, named or {}))
        old = {storage(it).data_ptr() for it in given if isinstance(it, torch.Tensor)}
        for it in tree_flatten(result)[0]:
            if isinstance(it, torch.Tensor) and it.is_cuda and it.numel() > 0:
                if storage(it).data_ptr() not in old:
                    note(str(function), begin, end, it)
        return result


@contextlib.contextmanager
def without_tensor(what, address):
    """What runs inside asks for one block that is no tensor's; `address` gives it afterwards."""
    begin = now()
    yield
    log.append(
        {
            "what": what,
            "begin_ns": begin,
            "end_ns": now(),
            "addr": address(),
            "shape": None,
            "dtype": None,
            "requested": None,
        }
    )


def factories(kept):
    for dtype in DTYPES:
        kept.append(torch.empty(5, 7, dtype=dtype, device="cuda"))
    for name in ("float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu", "uint16", "uint32", "uint64"):
        if hasattr(torch, name):
            kept.append(torch.empty(33, 9, dtype=getattr(torch, name), device="cuda"))
    kept.append(torch.empty((), device="cuda"))
    kept.append(torch.empty(1 << 20, device="cuda"))
    kept.append(torch.empty(3, 5, 3, 64, 64, device="cuda"))
    kept.append(torch.empty((2,) * 8, device="cuda"))
    kept.append(torch.empty(4, 3, 16, 16, device="cuda", memory_format=torch.channels_last))
    kept.append(torch.empty_strided((4, 6), (1, 4), device="cuda"))
    kept.append(torch.empty_strided((1000, 4), (0, 1), device="cuda"))
    kept.append(torch.empty_strided((3, 5), (32, 2), dtype=torch.float64, device="cuda"))
    kept.append(torch.empty_like(kept[-3]))
    kept.append(torch.zeros(17, 3, device="cuda"))
    kept.append(torch.randn(64, 64, device="cuda"))
    kept.append(torch.zeros(12, 34).to("cuda"))
    kept.append(torch.empty((2,) * 11, device="cuda"))


def training():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 30 * 30, 10)
    ).to("cuda")
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(4, 3, 32, 32, device="cuda")
    for _ in range(3):
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def raw(size):
    """A block that is no tensor's."""
    kept = []
    with without_tensor(f"caching_allocator_alloc({size})", lambda: kept[0]):
        kept.append(torch.cuda.caching_allocator_alloc(size))
    return kept[0]


def no_tensors(kept):
    raw(4096)
    # What comes before must not stick to the block.
    kept.append(torch.empty(0, 5, device="cuda"))
    raw(512)
    with contextlib.suppress(RuntimeError):
        torch.empty(-3, 5, device="cuda")
    raw(512)
    with contextlib.suppress(RuntimeError):
        torch.empty(1 << 62, device="cuda")
    raw(512)
    with contextlib.suppress(RuntimeError):
        torch.empty(1 << 45, device="cuda")
    raw(512)
    torch._efficientzerotensor((8, 16), device="cuda")
    raw(512)
    torch.empty(8, 16, device="meta")
    raw(512)
    torch.empty(8, 16)
    raw(512)
    grown = torch.empty(0, device="cuda")
    with without_tensor("resize_", grown.data_ptr):
        grown.resize_(1000)
    kept.append(grown)
    made = []
    # Made empty, and resized once its length is known.
    with without_tensor("arange", lambda: made[0].data_ptr()):
        made.append(torch.arange(100, device="cuda"))
    kept.append(made[0])
    storage_alone = storage(torch.empty(10, device="cuda"))
    with without_tensor("UntypedStorage.resize_", storage_alone.data_ptr):
        storage_alone.resize_(9000)
    kept.append(storage_alone)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    torch.cuda.init()
    kept = []
    with Noting():
        factories(kept)
        training()
    no_tensors(kept)
    with open(options.out + ".partial", "w") as file:
        json.dump(log, file)
    os.replace(options.out + ".partial", options.out)


if __name__ == "__main__":
    main()
