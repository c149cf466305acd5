"""Backward passes of many kinds, and what PyTorch itself knows of their nodes: hooks note when each begins and
ends, with the line of the forward pass that anomaly detection keeps with it.

The notes are lines of JSON, in order: `{"tid", "time_ns", "step", "name", "line"}`. `step` is `begin` or `end` of
a node, or `over`: the thread is in no node any more. `line` is the innermost line of this file on the operation's
own stack, null where PyTorch kept none."""

import argparse
import json
import tempfile
import threading
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch import nn
from torch.utils.checkpoint import checkpoint

NOTES = []


def note(step, name=None, line=None, tid=None):
    # The place in the list is the order; appending is atomic.
    tid = tid or threading.get_native_id()
    NOTES.append({"tid": tid, "time_ns": time.monotonic_ns(), "step": step, "name": name, "line": line})


def line_of(node):
    """The innermost line of this file on the stack of the operation that made a node."""
    kept = node.metadata.get("traceback_") or []
    lines = [text for text in kept if f'File "{__file__}"' in text]
    return int(lines[-1].split(", line ")[1].split(",")[0]) if lines else None


def watch(root):
    """Hooks every node that a tensor's history leads to."""
    seen = set()
    pending = [root.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name, line = node.name(), line_of(node)
        node.register_prehook(lambda _, name=name, line=line: note("begin", name, line))
        node.register_hook(lambda *_, name=name, line=line: note("end", name, line))
        pending.extend(following for following, _ in node.next_functions)


def backward(loss, **options):
    watch(loss)
    loss.backward(**options)
    note("over")


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x * x * gradient


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class Refused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("refused")


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, 2 * width)
        self.second = nn.Linear(2 * width, width)

    def forward(self, x):
        x = self.first(x)
        x = torch.relu(x)
        x = self.second(x)
        # Also of a forward pass that is done again, whose graph nobody else sees.
        if x.grad_fn is not None:
            watch(x)
        return x


def plain(device):
    net = Net(64).to(device)
    for _ in range(2):
        loss = net(torch.randn(32, 64, device=device)).pow(2).mean()
        backward(loss)


def custom(device):
    x = torch.randn(300, 300, device=device, requires_grad=True)
    y = Cube.apply(x)
    z = Cube.apply(y * 2)
    backward(z.sum())


def checkpointed(device):
    net = Net(64).to(device)
    for reentrant in (False, True):
        x = torch.randn(32, 64, device=device, requires_grad=True)
        y = checkpoint(net, x, use_reentrant=reentrant)
        y = y * 3
        backward(y.sum())


def twice(device):
    x = torch.randn(200, 200, device=device, requires_grad=True)
    y = x.exp()
    z = (y * x).sum()
    backward(z, retain_graph=True)
    z.backward()
    note("over")


def in_place(device):
    x = torch.randn(200, 200, device=device, requires_grad=True)
    y = x * 2
    y.mul_(x)
    y[:10].mul_(3)
    y.relu_()
    backward(y.sum())


def accumulated(device):
    net = Net(64).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(3):
            loss = net(torch.randn(16, 64, device=device)).sum()
            backward(loss)
        optimizer.step()


def double(device):
    x = torch.randn(200, 200, device=device, requires_grad=True)
    y = (x.exp() * x).sum()
    watch(y)
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    note("over")
    z = (gradient * gradient).sum()
    backward(z)


def several_results(device):
    x = torch.randn(240, 200, device=device, requires_grad=True)
    a, b, c = x.chunk(3)
    d = torch.cat([a * b, c.sigmoid()])
    backward(d.sum())


def threads(device):
    def work():
        for _ in range(5):
            x = torch.randn(150, 150, device=device, requires_grad=True)
            y = x.tanh()
            backward((y * x).sum())

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def hooked(device):
    """The engine calls the hooks of a tensor before those of its node."""
    x = torch.randn(210, 210, device=device, requires_grad=True)
    y = x.exp()
    name, line = y.grad_fn.name(), line_of(y.grad_fn)

    def hook(gradient):
        note("begin", name, line)
        twice = gradient * 2
        note("end", name, line)
        return twice

    y.register_hook(hook)
    backward((y * x).sum())


def called_back(device):
    """A callback at the end of the pass, when no node is evaluated, as DDP and FSDP queue them."""
    engine = torch.autograd.Variable._execution_engine
    x = torch.randn(220, 220, device=device, requires_grad=True)
    y = x.sigmoid()

    def callback():
        note("over")
        torch.ones(220, 220, device=device)

    y.register_hook(lambda _: engine.queue_callback(callback))
    backward(y.sum())


def refused(device):
    x = torch.randn(230, 230, device=device, requires_grad=True)
    loss = Refused.apply(x.tanh()).sum()
    for _ in range(2):
        try:
            backward(loss, retain_graph=True)
        except RuntimeError as error:
            assert "refused" in str(error)
        note("over")
        torch.ones(230, 230, device=device)


def at_the_same_address(device):
    """Threads count nodes from 0, and nodes get the memory of earlier ones: address, class and number can be equal."""
    x = torch.randn(240, 240, device=device, requires_grad=True)
    gradient = torch.ones(240, 240, device=device)
    made = []
    operations = [
        lambda: x.tanh(),
        lambda: x.tanh(),
        lambda: Cube.apply(x),
        lambda: Square.apply(x),
    ]
    for operation in 3 * operations:
        thread = threading.Thread(target=lambda: made.append(operation()))
        thread.start()
        thread.join()
        y = made.pop()
        watch(y)
        torch.autograd.grad(y, x, gradient)
        note("over")
        del y


def distributed(device):
    """The distributed engine, which evaluates the nodes of the CPU itself."""
    with tempfile.TemporaryDirectory() as folder:
        options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/store")
        rpc.init_rpc("alone", rank=0, world_size=1, rpc_backend_options=options)
        x = torch.randn(250, 250, device=device, requires_grad=True)
        y = x.exp()
        with dist_autograd.context() as context:
            loss = (y * x).sum()
            watch(loss)
            dist_autograd.backward(context, [loss])
            note("over")
        rpc.shutdown()


CASES = [
    plain,
    custom,
    checkpointed,
    twice,
    in_place,
    accumulated,
    double,
    several_results,
    hooked,
    called_back,
    refused,
    at_the_same_address,
    threads,
    distributed,
]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--notes", required=True)
    options = parser.parse_args()
    torch.autograd.set_detect_anomaly(True, check_nan=False)
    for case in CASES:
        case(options.device)
        # All that waited for the engine is back: its threads are in no node either.
        for tid in {note["tid"] for note in NOTES}:
            note("over", tid=tid)
    with open(options.notes, "w") as file:
        for row in NOTES:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
