"""Memory of several owners: libraries, pools whose memory sleeps and wakes, PyTorch's own pools.

Prints `READY` and waits for the file `awake`, before its first call into CUDA. Then goes through its phases. In each it
writes its own account to `PHASE.json`, prints `AT PHASE` and waits for a file with the name of the next one. With
`--until` it waits for nobody, and ends in that phase.
"""

import argparse
import ctypes
import dataclasses
import gc
import json
import mmap
import os
import tempfile
import threading
import time

import torch

MIB = 1 << 20
PHASES = ["awake", "asleep", "awake_again", "asleep_again", "freed"]


def block(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)


def account(library, tagging):
    free, total = torch.cuda.mem_get_info()
    stats = torch.cuda.memory_stats()
    return {
        "used": total - free,
        "total": total,
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "requested": stats["requested_bytes.all.current"],
        "active": stats["active_bytes.all.current"],
        "inactive_split": stats["inactive_split_bytes.all.current"],
        "backed_by_pools": library.sleeping_backed() if library else 0,
        "by_tag": tagging.by_tag(),
        "segments": [
            [segment["address"], segment["total_size"], list(segment["segment_pool_id"])]
            for segment in torch.cuda.memory_snapshot()
        ],
    }


def show_use(folder):
    """Shows the signs of use that NCCL, cuDNN, NVSHMEM and Triton leave in a process, without a GPU.

    Returns what must live: a thread named like those of ProcessGroupNCCL, and a mapping of a file for ranks.
    """
    for library in os.listdir(folder):
        ctypes.CDLL(os.path.join(folder, library))
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="nccl-") as shared:
        shared.truncate(4096)
        mapping = mmap.mmap(shared.fileno(), 4096)
    named = threading.Event()

    def watch():
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as name:
            name.write("pt_nccl_watchdg")
        named.set()
        threading.Event().wait()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    named.wait()
    return [thread, mapping]


def capture():
    """Returns a CUDA graph and a block of its private pool."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = block(3 * MIB)
    return [graph, held]


def write(path, content):
    with open(path + ".new", "w") as file:
        json.dump(content, file)
    os.rename(path + ".new", path)


def use_libraries(owners):
    """Each library gets memory, of the size that is given."""
    for owner in owners:
        path, how, size = owner.rsplit(":", 2)
        library = ctypes.CDLL(path)
        call = getattr(library, "owner_" + how)
        call.argtypes = [ctypes.c_size_t]
        assert call(int(size)) == 0, owner


@dataclasses.dataclass
class AllocationData:
    """What vLLM keeps of an allocation (vllm/device_allocator/__init__.py@e5337d9)."""

    handle: tuple[int, int, int, int]
    tag: str
    cpu_backup_tensor: torch.Tensor | None = None


class TaggingAllocator:
    """Tags of allocations in the shape of vLLM's (vllm/device_allocator/cumem.py@010c211, `CuMemAllocator`)."""

    def __init__(self, path):
        self.pointer_to_data = {}
        self.current_tag = "default"
        self.allocator_and_pools = {}
        self.python_malloc_callback = MALLOC(self._allocated)
        self.python_free_callback = FREE(self._freed)
        ctypes.CDLL(path).sleeping_tell(self.python_malloc_callback, self.python_free_callback)

    def _allocated(self, device, size, address, place):
        self.pointer_to_data[address] = AllocationData((device, size, address, place), self.current_tag)

    def _freed(self, address):
        self.pointer_to_data.pop(address)

    def pool(self, allocator, tag):
        return torch.cuda.MemPool(allocator)

    def by_tag(self):
        sums = {}
        for data in self.pointer_to_data.values():
            sums[data.tag] = sums.get(data.tag, 0) + data.handle[1]
        return sums


MALLOC = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_size_t, ctypes.c_ulonglong, ctypes.c_int)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_ulonglong)


class Untagged:
    """Nobody keeps tags."""

    current_tag = None

    def pool(self, allocator, tag):
        return torch.cuda.MemPool(allocator)

    def by_tag(self):
        return {}


class SavedPools:
    """Pools by tag in the shape of torch_memory_saver's (entrypoint.py@4a43c97, `_TorchMemorySaverImpl`).

    The tags of its allocations are in C++.
    """

    current_tag = None

    def __init__(self):
        self._binary_wrapper = None
        self._mem_pools = {}

    def pool(self, allocator, tag):
        return self._mem_pools.setdefault((tag, False, False, "", 0), torch.cuda.MemPool(allocator))

    def by_tag(self):
        return segments_by_tag(self._mem_pools)


class PackagePools:
    """Pools of the package torch_memory_saver itself, in its mode without LD_PRELOAD."""

    def __init__(self):
        from torch_memory_saver import torch_memory_saver

        torch_memory_saver.hook_mode = "torch"
        self.saver = torch_memory_saver
        self.is_asleep = False

    def fill(self):
        with self.saver.region(tag="weights"):
            weights = [block(size) for size in (30 * MIB, 5 * MIB, 700_000)]
        with self.saver.region(tag="kv_cache"):
            cache = [block(64 * MIB), block(12 * MIB)]
        del cache[1]
        return [weights, cache]

    def by_tag(self):
        return segments_by_tag(self.saver._impl._mem_pools)

    def sleeping_backed(self):
        return 0 if self.is_asleep else sum(self.by_tag().values())

    def sleeping_sleep(self):
        self.saver.pause()
        self.is_asleep = True

    def sleeping_wake(self):
        self.saver.resume()
        self.is_asleep = False
        return 0


def segments_by_tag(pools):
    """Reserved bytes of pools, by the tag that their keys begin with."""
    sums = {}
    segments = torch.cuda.memory_snapshot()
    for (tag, *_), pool in pools.items():
        own = [segment["total_size"] for segment in segments if segment["segment_pool_id"] == pool.id]
        sums[tag] = sums.get(tag, 0) + sum(own)
    return sums


def fill_pools(path, functions, tagging):
    """Two pools over memory of the library, and PyTorch's own pools beside them."""
    allocator = torch.cuda.memory.CUDAPluggableAllocator(path, *functions)
    pools = [tagging.pool(allocator.allocator(), tag) for tag in ("weights", "kv_cache")]
    kept = [allocator, *pools]
    tagging.current_tag = "weights"
    with torch.cuda.use_mem_pool(pools[0]):
        weights = [block(size) for size in (30 * MIB, 5 * MIB, 700_000)]
    tagging.current_tag = "kv_cache"
    with torch.cuda.use_mem_pool(pools[1]):
        cache = [block(64 * MIB), block(12 * MIB)]
    del cache[1]
    return [kept, weights, cache]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--owner", action="append", default=[])
    parser.add_argument("--pools", help="library with the allocator of the pools")
    parser.add_argument("--functions", default="sleeping_malloc,sleeping_free")
    parser.add_argument("--tags", action="store_true", help="tag the allocations of the pools, as vLLM does")
    parser.add_argument("--saver", action="store_true", help="keep the pools by tag, as torch_memory_saver does")
    parser.add_argument("--package", action="store_true", help="pools of torch_memory_saver itself, until they sleep")
    parser.add_argument("--graphs", type=int, default=0, help="CUDA graphs to capture")
    parser.add_argument("--signs", help="folder of libraries to load; libraries show signs of use")
    parser.add_argument("--until", choices=PHASES)
    options = parser.parse_args()
    at = lambda name: os.path.join(options.folder, name)
    print("READY", flush=True)
    if not options.until:
        wait_for(at(PHASES[0]))
    torch.cuda.init()
    kept = [block(size) for size in (1000, 24 * MIB, 5 * MIB, 3 * MIB)]
    del kept[2]
    kept.extend(capture() for _ in range(options.graphs))
    use_libraries(options.owner)
    if options.signs:
        kept.append(show_use(options.signs))
    library, pools, tagging = None, [], Untagged()
    if options.pools:
        if options.tags:
            tagging = TaggingAllocator(options.pools)
        if options.saver:
            tagging = SavedPools()
        pools = fill_pools(options.pools, options.functions.split(","), tagging)
        library = ctypes.CDLL(options.pools)
        library.sleeping_backed.restype = ctypes.c_size_t
    if options.package:
        library = tagging = PackagePools()
        kept.append(tagging.fill())
    for number, phase in enumerate(PHASES):
        if library and phase.startswith("asleep"):
            library.sleeping_sleep()
        if library and phase == "awake_again":
            assert library.sleeping_wake() == 0
        if phase == "freed":
            # The cache sleeps when its pool is freed.
            kept.append(block(2 * MIB))
            if pools:
                pools[2].clear()
                del pools[0][2]
            gc.collect()
            torch.cuda.empty_cache()
        write(at(phase + ".json"), account(library, tagging))
        print("AT", phase, flush=True)
        if phase == options.until:
            # The last readings of the driver and the allocator are of this phase.
            time.sleep(4)
            break
        if not options.until:
            wait_for(at(PHASES[number + 1] if phase != PHASES[-1] else "end"))
    os._exit(0)


main()
