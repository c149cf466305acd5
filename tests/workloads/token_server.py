"""A server whose scheduler gives token slots of a KV cache to requests, in the shape of SGLang 0.5.23: free pages in a
tensor on the GPU, lengths in the requests, and counts of a prefix tree.

Options: --folder DIR, --seed N, --page N (tokens in a page), --tree unified|rust|single|none (the tree with counts by
component, one whose counts are not in Python, the older one, and no tree)
In the folder: `go-N` makes it serve some requests and write `truth-N.json`. Then it stands still.
Prints: PID, and READY.
"""

import argparse
import array
import dataclasses
import enum
import json
import os
import pathlib
import random
import sys
import time
from typing import Optional

import torch

SIZE = 8192
LAYERS = 3
HEADS = 2
WIDTH = 32
PREFIXES = 4


class ComponentType(int, enum.Enum):
    """sglang/srt/mem_cache/unified_cache/component_type.py"""

    FULL = 0
    SWA = 1
    MAMBA = 2


class KeysAndValues:
    """`MHATokenToKVPool` (sglang/srt/mem_cache/memory_pool.py)"""

    def __init__(self, size, page_size):
        self.size = size
        self.page_size = page_size
        rows = size + page_size
        make = lambda: torch.zeros(rows, HEADS, WIDTH, dtype=torch.float16, device="cuda")
        self.k_buffer = [make() for _ in range(LAYERS)]
        self.v_buffer = [make() for _ in range(LAYERS)]


class SlotAllocator:
    """`TokenToKVPoolAllocator` and `PagedTokenToKVPoolAllocator` (sglang/srt/mem_cache/allocator)"""

    def __init__(self, size, page_size, kvcache):
        self.size = size
        self.page_size = page_size
        self.dtype = torch.float16
        self.device = "cuda"
        self._kvcache = kvcache
        self.need_sort = page_size == 1
        pages = size // page_size
        self.free_pages = torch.arange(1, pages + 1, dtype=torch.int64, device="cuda")
        self.release_pages = torch.empty((0,), dtype=torch.int64, device="cuda")
        self.free_group = None
        if page_size > 1:
            self.staged_pages = []
            self.release_pages = None

    def free_slots(self):
        pages = len(self.free_pages)
        if self.page_size > 1:
            pages += sum(len(staged) for staged in self.staged_pages)
        else:
            pages += len(self.release_pages)
        return pages * self.page_size

    def take(self, pages):
        if pages > len(self.free_pages):
            held = self.staged_pages if self.page_size > 1 else [self.release_pages]
            self.free_pages = torch.cat((self.free_pages, *held))
            if self.page_size > 1:
                self.staged_pages = []
            else:
                self.release_pages = self.release_pages[:0]
        taken, self.free_pages = self.free_pages[:pages], self.free_pages[pages:]
        assert len(taken) == pages
        return taken

    def give_back(self, pages):
        if len(pages) == 0:
            return
        if self.page_size > 1:
            self.staged_pages.append(pages)
        else:
            self.release_pages = torch.cat((self.release_pages, pages))


class Counts:
    """Tokens of the tree that nobody uses, and that requests use."""

    def __init__(self):
        self.evictable = self.protected = 0

    def add(self, evictable, protected):
        self.evictable += evictable
        self.protected += protected


class UnifiedTreeCore(Counts):
    """sglang/srt/mem_cache/unified_cache/unified_tree_core.py"""

    def __init__(self):
        super().__init__()
        self.root_node = object()
        self.add(0, 0)

    def add(self, evictable, protected):
        super().add(evictable, protected)
        self.component_evictable_size_ = {ComponentType.FULL: self.evictable}
        self.component_protected_size_ = {ComponentType.FULL: self.protected}


class RustUnifiedTreeCore:
    """sglang/srt/mem_cache/rust_tree_core/adapter.py: Python has none of its counts."""

    def __init__(self):
        self.tree_components = (ComponentType.FULL,)
        sums = [0, 0]

        def add(evictable, protected):
            sums[0] += evictable
            sums[1] += protected

        self.add = add


class UnifiedRadixCache:
    """sglang/srt/mem_cache/unified_radix_cache.py"""

    def __init__(self, allocator, core):
        self.token_to_kv_pool_allocator = allocator
        self.disable = False
        self.tree_core = core
        self.add = core.add


class RadixCache(Counts):
    """sglang/srt/mem_cache/radix_cache.py"""

    def __init__(self, allocator):
        super().__init__()
        self.token_to_kv_pool_allocator = allocator
        self.root_node = object()
        self.add(0, 0)

    def add(self, evictable, protected):
        super().add(evictable, protected)
        self.evictable_size_, self.protected_size_ = self.evictable, self.protected


# SGLang wants Python 3.10, which has both.
SLOTTED = {"slots": True, "kw_only": True} if sys.version_info >= (3, 10) else {}


@dataclasses.dataclass(**SLOTTED)
class ReqKvInfo:
    """sglang/srt/managers/schedule_batch.py"""

    req_pool_idx: Optional[int] = None
    cache_protected_len: int = 0
    cache_inserted_len: int = 0
    kv_committed_len: int = 0
    kv_allocated_len: int = 0


class Req:
    """sglang/srt/managers/schedule_batch.py"""

    def __init__(self, number, tokens):
        self.rid = f"{number:032x}"
        self.origin_input_ids = array.array("q", [1] * tokens)
        self.output_ids = array.array("q")
        self.kv = ReqKvInfo()
        self.pages = None
        self.prefix = None


class Scheduler:
    def __init__(self, options):
        self.random = random.Random(options.seed)
        self.page = options.page
        self.allocator = SlotAllocator(SIZE, options.page, KeysAndValues(SIZE, options.page))
        trees = {
            "unified": lambda: UnifiedRadixCache(self.allocator, UnifiedTreeCore()),
            "rust": lambda: UnifiedRadixCache(self.allocator, RustUnifiedTreeCore()),
            "single": lambda: RadixCache(self.allocator),
            "none": lambda: None,
        }
        self.tree_cache = trees[options.tree]()
        self.running = []
        self.waiting = [Req(0, 7)]
        self.served = 0
        # Prefixes by number: tokens, users, pages. They are whole pages.
        self.known = {}

    def start(self):
        self.served += 1
        prefix = self.random.randrange(PREFIXES) if self.tree_cache else None
        tokens = 16 * (prefix + 2) if prefix is not None else 0
        request = Req(self.served, tokens + self.random.randrange(5, 120))
        request.prefix = prefix
        kv = request.kv
        if prefix in self.known:
            known = self.known[prefix]
            if known["users"] == 0:
                self.tree_cache.add(-tokens, tokens)
            known["users"] += 1
            kv.cache_protected_len = tokens
        kv.kv_allocated_len = len(request.origin_input_ids)
        own = kv.kv_allocated_len - kv.cache_protected_len
        request.pages = self.allocator.take(-(-own // self.page))
        kv.req_pool_idx = self.served
        self.running.append(request)

    def grow(self, request):
        own = request.kv.kv_allocated_len - request.kv.cache_protected_len
        if own % self.page == 0:
            request.pages = torch.cat((request.pages, self.allocator.take(1)))
        request.kv.kv_allocated_len += 1
        request.output_ids.append(1)

    def finish(self, request):
        self.running.remove(request)
        prefix, pages = request.prefix, request.pages
        tokens = 16 * (prefix + 2) if prefix is not None else 0
        if request.kv.cache_protected_len:
            self.known[prefix]["users"] -= 1
            if self.known[prefix]["users"] == 0:
                self.tree_cache.add(tokens, -tokens)
        elif prefix is not None and prefix not in self.known:
            # The tree takes the prefix over.
            self.known[prefix] = {"users": 0}
            self.tree_cache.add(tokens, 0)
            pages = pages[tokens // self.page :]
        self.allocator.give_back(pages)
        request.kv = ReqKvInfo()
        self.waiting = [request]

    def serve(self, changes):
        for _ in range(changes):
            choice = self.random.random()
            if self.running and (choice < 0.3 or self.allocator.free_slots() < 1000):
                self.finish(self.random.choice(self.running))
            elif self.running and choice < 0.5:
                self.grow(self.random.choice(self.running))
            else:
                self.start()

    def truth(self):
        """Counted another way than by memprobe: by the tokens of requests and prefixes, and by pages."""
        requests, slack = {}, 0
        for request in self.running:
            own = request.kv.kv_allocated_len - request.kv.cache_protected_len
            requests[request.rid] = [own, request.kv.cache_protected_len]
            slack += len(request.pages) * self.page - own
        tokens = lambda prefix: 16 * (prefix + 2)
        shared = sum(tokens(prefix) for prefix, known in self.known.items() if known["users"])
        cached = sum(tokens(prefix) for prefix, known in self.known.items() if not known["users"])
        return {
            "requests": requests,
            "shared": shared,
            "cached": cached,
            "free": self.allocator.free_slots(),
            "reserved": self.page,
            "slack": slack,
        }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--page", type=int, default=1)
    parser.add_argument("--tree", default="unified")
    scheduler = Scheduler(options := parser.parse_args())
    print("PID", os.getpid(), flush=True)
    print("READY", flush=True)
    for point in range(1, 1 << 30):
        while not (options.folder / f"go-{point}").exists():
            time.sleep(0.01)
        scheduler.serve(120)
        partial = options.folder / "truth.partial"
        partial.write_text(json.dumps(scheduler.truth()))
        partial.rename(options.folder / f"truth-{point}.json")


if __name__ == "__main__":
    main()
