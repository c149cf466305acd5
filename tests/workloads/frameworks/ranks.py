"""Two ranks: DDP over gloo, or FSDP2 with `fully_shard` over the simulated NCCL, which moves no bytes.

    python frameworks/ranks.py             DDP
    SHARDED=1 python frameworks/ranks.py   FSDP2
"""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn

import framework_truth as truth


def model():
    return nn.Sequential(
        nn.Linear(64, 256), nn.Sequential(nn.ReLU(), nn.Linear(256, 256)), nn.Linear(256, 10)
    ).cuda()


def train(rank, port):
    os.environ.update(
        RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    torch.cuda.set_device(rank)
    with truth.recording():
        if os.environ.get("SHARDED"):
            dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
            net = sharded(model())
        else:
            dist.init_process_group("gloo")
            # Simulated GPUs exchange zeros: sizes of another model, and buckets that no longer fit.
            net = nn.parallel.DistributedDataParallel(
                model(), device_ids=[rank], init_sync=False, find_unused_parameters=True
            )
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(8):
            inputs = torch.randn(16, 64, device="cuda")
            net(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            truth.iteration()
        if rank == 0:
            truth.point("trained")
        del net, optimizer
    # A simulated NCCL has no peers: the ranks end one by one.
    os._exit(0)


def sharded(net):
    from torch.distributed.fsdp import fully_shard

    for layer in net:
        fully_shard(layer)
    return fully_shard(net)


def main():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    ranks = [context.Process(target=train, args=(rank, port)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    if any(rank.exitcode for rank in ranks):
        raise SystemExit("a rank failed")


if __name__ == "__main__":
    truth.run(main, here=False)
