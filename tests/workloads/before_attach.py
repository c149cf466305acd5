"""Programs whose memory is there before memprobe comes: a training, a GAN, a server that caches, and a leak.

    python before_attach.py training|gan|server|leak --out truth.json --until FILE [--rest FILE]

Prints `holding` once everything is in place, works on until FILE is there, and then writes what Python itself holds: kind, module and container of
each block that has been live all the time, by address. Once there is the file of `--rest`, and the leak is full, it prints `resting` and only waits.
"""

import argparse
import json
import os
import time

import torch

WIDTH = 256


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH)
        self.norm = torch.nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return self.norm(x + self.down(torch.relu(self.up(x))))


def network(depth=3):
    return torch.nn.Sequential(*(Block() for _ in range(depth))).cuda()


def of_modules(roots):
    """Blocks of the modules below these variables, by address."""
    truth = {}
    for root, model in roots.items():
        for path, module in model.named_modules():
            name = f"{root}.{path}" if path else root
            for kind, tensors in (("parameter", module._parameters), ("buffer", module._buffers)):
                for tensor in tensors.values():
                    truth[tensor.data_ptr()] = {"kind": kind, "module": name}
                    if kind == "parameter" and tensor.grad is not None:
                        truth[tensor.grad.data_ptr()] = {"kind": "gradient", "module": name}
    return truth


def of_optimizers(optimizers):
    tensors = (value for it in optimizers for state in it.state.values() for value in state.values())
    return {it.data_ptr(): {"kind": "optimizer_state"} for it in tensors if torch.is_tensor(it) and it.is_cuda}


def batch():
    return torch.randn(64, WIDTH, device="cuda")


class Program:
    """It may rest at any time."""

    def is_full(self):
        return True


class Training(Program):
    def __init__(self):
        self.model = network()
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def work(self):
        self.model(batch()).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def truth(self):
        return of_modules({"model": self.model}) | of_optimizers([self.optimizer])


class Gan(Program):
    def __init__(self):
        self.generator, self.critic = network(2), network(2)
        nets = (self.generator, self.critic)
        self.optimizers = [torch.optim.AdamW(net.parameters()) for net in nets]

    def work(self):
        for optimizer in self.optimizers:
            # Gradients stay where they are.
            optimizer.zero_grad(set_to_none=False)
            self.critic(self.generator(batch())).mean().backward()
            optimizer.step()

    def truth(self):
        nets = {"generator": self.generator, "critic": self.critic}
        return of_modules(nets) | of_optimizers(self.optimizers)


class Server(Program):
    def __init__(self):
        self.model = network().eval()
        self.cache = {"kv": [batch() for _ in range(40)], "prompts": {number: batch() for number in range(40)}}

    def work(self):
        with torch.inference_mode():
            self.model(batch())

    def truth(self):
        kept = {"kv": self.cache["kv"], "prompts": self.cache["prompts"].values()}
        kept = {it.data_ptr(): {"kind": "tensor", "retainer": key} for key, tensors in kept.items() for it in tensors}
        return of_modules({"model": self.model}) | kept


class Leak:
    MOST = 100

    def __init__(self):
        self.model = network()
        self.losses = []
        for _ in range(20):
            self.work()

    def work(self):
        if not self.is_full():
            self.losses.append(self.model(batch()).square().mean())

    def is_full(self):
        return len(self.losses) == self.MOST

    def truth(self):
        return of_modules({"model": self.model})


def main():
    options = argparse.ArgumentParser()
    options.add_argument("program", choices=["training", "gan", "server", "leak"])
    options.add_argument("--out", required=True)
    options.add_argument("--until", required=True, help="it ends when there is this file")
    options.add_argument("--rest", help="it works no more when there is this file")
    options = options.parse_args()
    programs = {"training": Training, "gan": Gan, "server": Server, "leak": Leak}
    program = programs[options.program]()
    for _ in range(3):
        program.work()
    before = set(program.truth())
    print("holding", flush=True)
    rests = False
    while not os.path.exists(options.until):
        if not rests and options.rest and os.path.exists(options.rest) and program.is_full():
            rests = True
            print("resting", flush=True)
        if not rests:
            program.work()
        time.sleep(0.05)
    truth = {address: held for address, held in program.truth().items() if address in before}
    with open(options.out, "w") as out:
        json.dump(truth, out)


if __name__ == "__main__":
    main()
