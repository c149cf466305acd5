"""Every kind of Python stack, without PyTorch: a stand-in for its allocator is called from each.

Block N has `512 * N` bytes. Writes, as JSON, the stack of each block by its number as Python itself
says it: innermost first, file, line, function; null where there is no Python on the thread.
"""

import argparse
import asyncio
import ctypes
import functools
import gc
import itertools
import json
import os
import sys
import threading
import time

NUMBERS = itertools.count(1)
TRUTH = {}
SCENES = []


def scene(function):
    SCENES.append(function)
    return function


class Task(ctypes.Structure):
    _fields_ = [
        ("number", ctypes.c_uint64),
        ("callback", ctypes.c_void_p),
        ("ensure", ctypes.c_void_p),
        ("save", ctypes.c_void_p),
        ("restore", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
    ]


class Library:
    """The stand-in, called without the GIL or with it."""

    def __init__(self, folder):
        for name in ["libcudart.so.13", "libtorch_cpu.so"]:
            ctypes.CDLL(os.path.join(folder, name))
        path = os.path.join(folder, "libc10.so")
        self.released = ctypes.CDLL(path)
        self.held = ctypes.PyDLL(path)
        for library in [self.released, self.held]:
            library.allocate.argtypes = [ctypes.c_uint64]
            library.allocate.restype = None
            library.on_thread.argtypes = [ctypes.POINTER(Task)]


def next_number():
    """The number of the next block, and its stack noted: that of the caller."""
    number = next(NUMBERS)
    frames = TRUTH[number] = []
    frame = sys._getframe(1)
    while frame:
        code = frame.f_code
        frames.append([code.co_filename, frame.f_lineno or 0, code.co_name])
        frame = frame.f_back
    return number


def released():
    LIBRARY.released.allocate(next_number())


def held():
    LIBRARY.held.allocate(next_number())


def both():
    released()
    held()


@scene
def plain():
    both()


@scene
def nested():
    def outer():
        def inner():
            return [both() for _ in range(3)]

        return {key: inner() for key in "ab"}

    outer()


@scene
def deep():
    def descend(depth):
        if depth:
            descend(depth - 1)
        else:
            both()

    for depth in (10, 60, 110, 150, 400):
        descend(depth)


@scene
def through_c():
    def descend(depth):
        if depth:
            functools.reduce(lambda _, rest: descend(rest), [0, depth - 1])
        else:
            both()

    for depth in (1, 5, 20, 45):
        descend(depth)


@scene
def generators():
    def leaf():
        yield 1
        both()
        try:
            yield 2
        except ValueError:
            both()
        yield 3

    def middle():
        yield from leaf()

    generator = middle()
    next(generator)
    next(generator)
    generator.throw(ValueError())
    list(both() for _ in range(2))


@scene
def coroutines():
    async def leaf(wait):
        await asyncio.sleep(wait)
        both()

    async def ticks():
        for _ in range(3):
            yield 1
            both()

    async def main():
        await asyncio.gather(*(leaf(0.001 * turn) for turn in range(4)))
        async for _ in ticks():
            both()

    asyncio.run(main())


@scene
def special():
    class Strange:
        def __getattr__(self, name):
            return self + name

        def __add__(self, other):
            return self[other]

        def __getitem__(self, key):
            return sorted([1], key=self)

        def __call__(self, value):
            return functools.partial(both)()

        def __del__(self):
            both()

        @property
        def size(self):
            both()
            return 1

    strange = Strange()
    strange.attribute
    strange.size
    del strange

    class Meta(type):
        def __init__(cls, name, bases, namespace):
            both()

    Meta("Made", (), {})


@scene
def several_lines():
    def many(first, *rest, **named):
        both()

    many(
        1,
        many(
            2,
            key=[
                3,
            ],
        ),
        4,
    )
    with_names("größe", "/tmp/façade.py")
    with_names("漢字", "/tmp/мир.py")
    with_names("f" * 100, "/tmp/" + "long/" * 40 + "name.py")


def with_names(name, file):
    scope = {"both": both}
    exec(compile(f"def {name}():\n\n  both()\n", file, "exec"), scope)
    scope.popitem()[1]()


@scene
def dropped_code():
    """Cells as in a notebook, each dropped as soon as it has run."""
    for number in range(60):
        source = "\n" * (number % 37) + "def cell():\n    both()\ncell()\n"
        exec(compile(source, f"<cell {number}>", "exec"), {"both": both})


@scene
def traced():
    def trace(frame, event, argument):
        return trace

    sys.settrace(trace)
    try:
        both()
    finally:
        sys.settrace(None)


@scene
def threads():
    def work(depth):
        def descend(depth):
            if depth:
                return descend(depth - 1)
            for _ in range(20):
                both()

        descend(depth)

    started = [threading.Thread(target=work, args=(depth,)) for depth in range(8)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


@scene
def threads_that_come_and_go():
    for _ in range(20):
        thread = threading.Thread(target=both)
        thread.start()
        thread.join()


def on_thread(**task):
    error = LIBRARY.released.on_thread(ctypes.byref(Task(**task)))
    assert error == 0, error


@scene
def threads_of_c():
    """Threads that Python did not start: with Python on them, without, and idle."""
    python = ctypes.pythonapi
    api = {
        "ensure": python.PyGILState_Ensure,
        "save": python.PyEval_SaveThread,
        "restore": python.PyEval_RestoreThread,
        "release": python.PyGILState_Release,
    }
    api = {name: ctypes.cast(function, ctypes.c_void_p) for name, function in api.items()}
    called = ctypes.CFUNCTYPE(None)(both)
    for _ in range(3):
        on_thread(callback=ctypes.cast(called, ctypes.c_void_p))
        for extra in ({}, api):
            number = next(NUMBERS)
            TRUTH[number] = None
            on_thread(number=number, **extra)


def run():
    for function in SCENES:
        function()
        gc.collect()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--libraries", required=True, help="the folder of the stand-ins")
    parser.add_argument("--go", help="a file: wait with the first scene until it is there")
    parser.add_argument("--truth", required=True, help="where to write the stacks")
    options = parser.parse_args()
    global LIBRARY
    LIBRARY = Library(options.libraries)
    sys.setrecursionlimit(2_000)
    print(f"PID {os.getpid()}", flush=True)
    while options.go and not os.path.exists(options.go):
        time.sleep(0.01)
    run()
    with open(options.truth, "w") as file:
        json.dump(TRUTH, file)
    time.sleep(0.2)


if __name__ == "__main__":
    main()
