"""Process groups of one rank over NCCL, whose communicators are made in different calls.

Prints `READY` and waits for the file `go` in the folder, before its first call into CUDA. Then makes its groups, prints
`MADE` and waits for the file `end`. With `TORCH_DIST_USE_NCCL2=0` a group has its communicator at its first collective.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)


def meet(folder):
    method = "file://" + os.path.join(folder, "store")
    dist.init_process_group("nccl", init_method=method, rank=0, world_size=1)


def reduce_all(values, group=None):
    dist.all_reduce(values, group=group)


def gather(values, group):
    dist.all_gather([torch.empty_like(values)], values, group=group)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True)
    options = parser.parse_args()
    print("READY", flush=True)
    wait_for(os.path.join(options.folder, "go"))
    torch.cuda.init()
    values = torch.zeros(1000, device="cuda")
    meet(options.folder)
    reduce_all(values)
    other = dist.new_group([0])
    gather(values, other)
    print("MADE", flush=True)
    wait_for(os.path.join(options.folder, "end"))
    os._exit(0)


main()
