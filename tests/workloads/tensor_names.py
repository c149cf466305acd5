"""Tensors in every place where Python keeps things. Each has a shape of its own, to tell them apart."""

import collections
import threading
import weakref

import torch
from torch import nn

import tensor_reference


def made(size):
    return torch.zeros(size, device="cuda")


THE_GLOBAL = made(101)
cache = {"kv": [made(102), (made(103), made(104))], 7: made(105)}
by_shape = collections.OrderedDict(first=made(106))
queue = collections.deque([made(107), made(108)])


class Holder:
    shared = made(111)

    def __init__(self):
        self.attribute = made(112)
        self.nested = {"deep": [made(113)]}


class Slotted:
    __slots__ = ("slot",)

    def __init__(self):
        self.slot = made(114)


class Crate(dict):
    """A dict that has attributes too."""


Pair = collections.namedtuple("Pair", "left right")


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(made(121))
        # Neither a parameter nor a buffer.
        self.plain = made(122)
        self.past = [made(123)]


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.register_buffer("mean", made(124))


holder = Holder()
slotted = Slotted()
crate = Crate(kept=made(115))
crate.label = made(116)
pair = Pair(made(117), made(118))


def closure():
    captured = made(131)

    def use():
        return captured

    return use


use = closure()


def generate():
    in_generator = made(132)
    yield 1
    yield in_generator


generator = generate()
next(generator)


async def wait():
    in_coroutine = made(133)
    await Never()
    return in_coroutine


class Never:
    def __await__(self):
        yield


coroutine = wait()
coroutine.send(None)


def with_default(default=made(134), *, only=made(135)):
    return default, only


def fail():
    in_failed = made(136)
    raise ValueError(in_failed.shape)


def failure():
    try:
        fail()
    except ValueError as error:
        return error


kept_error = failure()


def in_thread(ready, over):
    in_a_thread = made(141)
    ready.set()
    over.wait()
    return in_a_thread


def deep(depth, points):
    local = made(150 + depth)
    if depth < 3:
        deep(depth + 1, points)
    else:
        points.at("held", EXPECTED)
    return local


# What memprobe calls them; `*` stands for a line.
EXPECTED = [
    ("THE_GLOBAL", [101]),
    ("cache['kv'][0]", [102]),
    ("cache['kv'][1][0]", [103]),
    ("cache['kv'][1][1]", [104]),
    ("cache[7]", [105]),
    ("by_shape['first']", [106]),
    ("queue[0]", [107]),
    ("queue[1]", [108]),
    ("Holder.shared", [111]),
    ("holder.attribute", [112]),
    ("holder.nested['deep'][0]", [113]),
    ("slotted.slot", [114]),
    ("crate['kept']", [115]),
    ("crate.label", [116]),
    ("pair[0]", [117]),
    ("pair[1]", [118]),
    ("inner.weight", [121]),
    ("model.inner.plain", [122]),
    ("model.inner.past[0]", [123]),
    ("mean", [124]),
    ("use.__closure__[0].cell_contents", [131]),
    ("tensor_names.py:* generate() -> in_generator (suspended generator)", [132]),
    ("tensor_names.py:* wait() -> in_coroutine (suspended coroutine)", [133]),
    ("with_default.__defaults__[0]", [134]),
    ("with_default.__kwdefaults__['only']", [135]),
    ("tensor_names.py:* fail() -> in_failed (frame of an ended call)", [136]),
    ("tensor_names.py:* in_thread() -> in_a_thread", [141]),
    ("tensor_names.py:* deep() -> local", [150]),
    ("tensor_names.py:* deep() -> local", [151]),
    ("tensor_names.py:* deep() -> local", [152]),
    ("tensor_names.py:* deep() -> local", [153]),
    ("tensor_names.py:* main() -> in_main", [161]),
    ("tensor_names.py:* main() -> listed[2]", [162]),
    ("tensor_names.py:* main() -> cell", [163]),
]


def main(points, options):
    model = Outer().cuda()
    in_main = made(161)
    listed = [0, "", made(162)]
    cell = made(163)
    # Nobody holds what it watches but `in_main`.
    watched = weakref.ref(in_main)
    ready, over = threading.Event(), threading.Event()
    thread = threading.Thread(target=in_thread, args=(ready, over))
    thread.start()
    ready.wait()

    def reads_cell():
        return cell

    deep(0, points)
    over.set()
    thread.join()
    return model, listed, reads_cell, watched


if __name__ == "__main__":
    tensor_reference.run(main)
