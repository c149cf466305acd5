"""Tensors in every place where Python keeps things. Each has a shape of its own, to tell them apart."""

import collections
import contextvars
import functools
import itertools
import queue as queues
import threading
import types
import weakref

import numpy
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


@functools.lru_cache(maxsize=8)
def bounded(key):
    return made(171)


@functools.lru_cache(maxsize=None)
def unbounded(key, size):
    return made(size)


@functools.lru_cache(maxsize=8)
def keyed(key):
    return None


class Key:
    def __init__(self):
        self.kept = made(174)


bounded("en")
unbounded(7, 172)
unbounded(8, 173)
keyed(Key())
local = threading.local()
local.ours = made(175)
variable = contextvars.ContextVar("variable")
variable.set(made(177))
with_default_value = contextvars.ContextVar("with_default_value", default=[made(178)])
proxy = types.MappingProxyType({"frozen": made(179)})
simple = queues.SimpleQueue()
for size in [180, 181, 182]:
    simple.put(made(size))
simple.get()
iterator = iter([made(183)])
mapped = map(str, (made(184),))
numbered = enumerate({"kept": made(185)}.values())
zipped = zip(collections.deque([made(186)]), itertools.repeat(made(187)))
cycled = itertools.cycle([made(188)])
next(cycled)
append = [made(189)].append


def in_array(value):
    array = numpy.empty(1, dtype=object)
    array[0] = value
    return array


# The collector tracks no array, and up to Python 3.13 no dict or tuple of nothing but arrays.
row = numpy.empty(5, dtype=object)
row[3] = made(196)
grid = numpy.empty((2, 3), dtype=object)
grid[1, 2] = made(197)
cube = numpy.empty((2, 2, 2), dtype=object)
cube[1, 0, 1] = made(198)
single = numpy.empty((), dtype=object)
single[()] = made(199)
whole = numpy.empty((4, 4), dtype=object)
whole[2, 1] = made(200)
whole[0, 0] = made(201)
view = whole[::-1, 1:3]
del whole
holder.array = in_array(made(202))
arrays = {"one": in_array(made(203)), "size": 1}
in_list = [0, in_array(made(204))]
within = [{"pair": (in_array(made(205)), 2)}]
of_lists = in_array([made(206)])


class Row(numpy.ndarray):
    """The collector tracks objects of a class that a statement made."""


tracked = numpy.empty(2, dtype=object).view(Row)
tracked[1] = made(207)


class Kept(torch.autograd.Function):
    """Keeps what its backward pass needs as attributes instead of with `save_for_backward`."""

    @staticmethod
    def forward(ctx, x):
        ctx.factor = made(193)
        ctx.others = {"kept": made(192)}
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor


graph = Kept.apply(made(191).requires_grad_())


# A parameter of no module, as the flat ones of ZeRO.
box = types.SimpleNamespace(parts=[made(194).requires_grad_()])
optimizer = torch.optim.SGD(box.parts, lr=0.1)
optimizer.state[box.parts[0]]["moment"] = made(195)


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
    ("bounded['en']", [171]),
    ("unbounded[…]", [172]),
    ("unbounded[…]", [173]),
    ("keyed{…}[0].kept", [174]),
    ("local.ours", [175]),
    ("variable.get()", [177]),
    ("with_default_value.get()[0]", [178]),
    ("proxy.<mapping>['frozen']", [179]),
    ("simple[0]", [181]),
    ("simple[1]", [182]),
    ("iterator.<list>[0]", [183]),
    ("mapped.<iterators>[0].<tuple>[0]", [184]),
    ("numbered.<iterator>.<dict>['kept']", [185]),
    ("zipped.<iterators>[0].<deque>[0]", [186]),
    ("zipped.<iterators>[1].<object>", [187]),
    ("cycled.<saved>[0]", [188]),
    ("append.__self__[0]", [189]),
    ("row[3]", [196]),
    ("grid[1, 2]", [197]),
    ("cube.flat[5]", [198]),
    ("single.flat[0]", [199]),
    ("view[1, 0]", [200]),
    ("view.base[0, 0]", [201]),
    ("holder.array[0]", [202]),
    ("arrays['one'][0]", [203]),
    ("in_list[1][0]", [204]),
    ("within[0]['pair'][0][0]", [205]),
    ("of_lists[0][0]", [206]),
    ("tracked[1]", [207]),
    ("tensor_names.py:* main() -> boxed[0]", [164]),
    ("KeptBackward.ctx.others['kept']", [192]),
    ("KeptBackward.ctx.factor", [193]),
    ("box.parts[0]", [194]),
    ("SGD.moment[box.parts[0]]", [195]),
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
    boxed = in_array(made(164))
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
    return model, listed, reads_cell, watched, boxed


if __name__ == "__main__":
    tensor_reference.run(main)
