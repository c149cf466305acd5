"""A server whose scheduler gives blocks of a KV cache to requests, in the shape of vLLM's: blocks with reference counts,
a queue of free ones, lists of blocks by request and group of layers, and blocks kept for requests with the same prefix.

Options: --folder DIR, --seed N, --worker (the tensors in a process of its own, as with several GPUs), --plain (blocks
without slots), --groups N (groups of layers; those after the first drop old blocks), --foreign (a pool with other
attributes, which nobody knows), --busy (serves all the time)
In the folder: `go-N` makes it serve some requests and write `truth-N.json`. Without --busy it then stands still.
Prints: PID of the process with the tensors, SCHEDULER and its PID, and READY.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import random
import time

import torch

BLOCKS = 600
TOKENS = 16
LAYERS = 4
PAGE = 8192


class SlottedBlock:
    __slots__ = ("block_id", "ref_cnt", "_block_hash", "next_free_block", "is_null")


class PlainBlock:
    pass


class FreeQueue:
    """Free blocks, oldest first, linked by the blocks themselves."""

    def __init__(self, blocks):
        self.num_free_blocks = 0
        self.first = self.last = None
        for block in blocks:
            self.append(block)

    def append(self, block):
        block.next_free_block = None
        if self.last is None:
            self.first = block
        else:
            self.last.next_free_block = block
        self.last = block
        self.num_free_blocks += 1

    def pop(self):
        block = self.first
        self.first = block.next_free_block
        if self.first is None:
            self.last = None
        block.next_free_block = None
        self.num_free_blocks -= 1
        return block

    def remove(self, wanted):
        blocks = list(iter_free(self))
        self.__init__(block for block in blocks if block is not wanted)


def iter_free(queue):
    block = queue.first
    while block is not None:
        following = block.next_free_block
        yield block
        block = following


class BlockPool:
    def __init__(self, count, kind):
        self.num_gpu_blocks = count
        self.blocks = []
        for number in range(count):
            block = kind()
            block.block_id, block.ref_cnt, block._block_hash = number, 0, None
            block.is_null = False
            self.blocks.append(block)
        self.free_block_queue = FreeQueue(self.blocks)
        self.known = {}
        self.null_block = self.free_block_queue.pop()
        self.null_block.is_null = True

    def take(self):
        block = self.free_block_queue.pop()
        if block._block_hash is not None:
            del self.known[block._block_hash]
            block._block_hash = None
        block.ref_cnt = 1
        return block

    def share(self, block):
        if block.ref_cnt == 0:
            self.free_block_queue.remove(block)
        block.ref_cnt += 1

    def release(self, block):
        if block is self.null_block:
            return
        block.ref_cnt -= 1
        if block.ref_cnt == 0:
            self.free_block_queue.append(block)

    def keep(self, block, content):
        if content not in self.known and block._block_hash is None:
            self.known[content] = block
            block._block_hash = content


class GroupManager:
    def __init__(self, pool, group):
        self.block_pool = pool
        self.block_size = TOKENS
        self.group = group
        self.req_to_blocks = {}

    def add(self, request, tokens):
        blocks = self.req_to_blocks.setdefault(request, [])
        for first in range(0, len(tokens), TOKENS):
            content = (self.group, *tokens[: first + TOKENS])
            is_full = first + TOKENS <= len(tokens)
            if is_full and content in self.block_pool.known:
                block = self.block_pool.known[content]
                self.block_pool.share(block)
            else:
                block = self.block_pool.take()
                if is_full:
                    self.block_pool.keep(block, content)
            blocks.append(block)

    def grow(self, request):
        self.req_to_blocks[request].append(self.block_pool.take())

    def forget_old(self, request):
        blocks = self.req_to_blocks[request]
        for at in range(len(blocks) - 3):
            if blocks[at] is not self.block_pool.null_block:
                self.block_pool.release(blocks[at])
                blocks[at] = self.block_pool.null_block

    def free(self, request):
        for block in reversed(self.req_to_blocks.pop(request)):
            self.block_pool.release(block)


class CacheTensor:
    def __init__(self, size):
        self.size = size


class CacheConfig:
    def __init__(self, blocks):
        self.num_blocks = blocks
        self.kv_cache_tensors = [CacheTensor(blocks * PAGE) for _ in range(LAYERS)]


class ForeignPool:
    def __init__(self, blocks):
        self.num_gpu_blocks = blocks
        self.free_block_queue = list(range(blocks))


class Scheduler:
    def __init__(self, options):
        kind = PlainBlock if options.plain else SlottedBlock
        self.random = random.Random(options.seed)
        self.config = CacheConfig(BLOCKS)
        self.pool = BlockPool(BLOCKS, kind)
        self.managers = [GroupManager(self.pool, group) for group in range(options.groups)]
        self.served = 0
        self.prefixes = [[self.random.randrange(9999) for _ in range(3 * TOKENS)] for _ in range(3)]

    def has_room(self):
        return self.pool.free_block_queue.num_free_blocks > 24 * len(self.managers)

    def serve(self, changes):
        for _ in range(changes):
            running = list(self.managers[0].req_to_blocks)
            choice = self.random.random()
            if running and (choice < 0.3 or not self.has_room()):
                request = self.random.choice(running)
                for manager in self.managers:
                    manager.free(request)
            elif running and choice < 0.5:
                request = self.random.choice(running)
                for manager in self.managers:
                    manager.grow(request)
                for manager in self.managers[1:]:
                    manager.forget_old(request)
            else:
                self.served += 1
                prefix = self.random.choice([[], *self.prefixes])
                tokens = prefix + [self.random.randrange(9999) for _ in range(self.random.randrange(5, 90))]
                for manager in self.managers:
                    manager.add(f"request-{self.served}", tokens)

    def truth(self):
        """What the program itself says, counted another way than by memprobe: request by request."""
        holders = {}
        for manager in self.managers:
            for request, blocks in manager.req_to_blocks.items():
                for block in blocks:
                    if not block.is_null:
                        holders.setdefault(block.block_id, set()).add(request)
        requests = {request: [0, 0] for manager in self.managers for request in manager.req_to_blocks}
        for users in holders.values():
            for request in users:
                requests[request][len(users) > 1] += 1
        free = list(iter_free(self.pool.free_block_queue))
        cached = sum(block._block_hash is not None for block in free)
        return {
            "requests": requests,
            "shared": sum(len(users) > 1 for users in holders.values()),
            "cached": cached,
            "free": len(free) - cached,
            "reserved": 1,
        }


class ModelRunner:
    def __init__(self):
        self.model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(LAYERS)]).cuda()
        self.kv_cache_config = CacheConfig(BLOCKS)
        raw = [torch.zeros(BLOCKS * PAGE, dtype=torch.int8, device="cuda") for _ in range(LAYERS)]
        self.kv_caches = [memory.view(torch.float16).view(2, BLOCKS, TOKENS, -1) for memory in raw]
        self.workspace = torch.zeros(3 << 20, dtype=torch.uint8, device="cuda")


def work(parent):
    runner = ModelRunner()
    print("PID", os.getpid(), flush=True)
    parent.send("ready")
    parent.recv()
    return runner


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worker", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--foreign", action="store_true")
    parser.add_argument("--busy", action="store_true")
    options = parser.parse_args()

    if options.worker:
        here, there = multiprocessing.get_context("spawn").Pipe()
        worker = multiprocessing.get_context("spawn").Process(target=work, args=(there,))
        worker.start()
        here.recv()
    else:
        runner = ModelRunner()
        print("PID", os.getpid(), flush=True)
    scheduler = ForeignPool(BLOCKS) if options.foreign else Scheduler(options)
    print("SCHEDULER", os.getpid(), flush=True)
    print("READY", flush=True)
    for point in range(1, 1 << 30):
        while not (options.folder / f"go-{point}").exists():
            if options.busy:
                scheduler.serve(20)
            else:
                time.sleep(0.01)
        if not options.foreign:
            scheduler.serve(150)
            partial = options.folder / "truth.partial"
            partial.write_text(json.dumps(scheduler.truth()))
            partial.rename(options.folder / f"truth-{point}.json")


if __name__ == "__main__":
    main()
