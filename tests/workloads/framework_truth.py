"""A framework's program by its own account: PyTorch's history, the modules, the iterations, the tensors.

    python frameworks/NAME.py --out FOLDER        every process writes FOLDER/PID.json
    python frameworks/NAME.py --folder FOLDER     stands still at its points, see `tensor_reference`

PID.json is what `reference.py` writes, and also:

    packages    {name: version} of the frameworks that were used
    iterations  how many the program counted; null where it has none
    starts      the line at which an iteration starts (`FILE:LINE`), where that has to be said
    modules     {threads: [{thread, marks: [[blocks, module or null, null], ...]}], names}: which module is innermost
                from so many blocks on, by its place in `names`; and every name that a module may have, as
                `named_modules()` of each module that was called outermost says; null where it took no note
"""

import argparse
import contextlib
import importlib.metadata
import os
import sys
import threading
import time
import weakref

import torch
from torch.nn.modules import module as torch_module

import reference
import tensor_reference

# The folders of accounts and of points, for the processes that a program starts.
FOLDER = "MEMPROBE_TRUTH"
POINTS = "MEMPROBE_TRUTH_POINTS"

# A real step takes longer. memprobe believes a tree of modules that it found unchanged for some time.
STEP_SECONDS = 0.03

account = None


class Modules:
    """Takes note of each call of a module, at the number of blocks so far."""

    def __init__(self):
        self.threads = {}
        self.called = threading.local()
        self.numbers = weakref.WeakKeyDictionary()
        self.names = []

    def watch(self):
        torch_module.register_module_forward_pre_hook(self.enter)
        torch_module.register_module_forward_hook(self.leave, always_call=True)
        self.mark(None)

    def stack(self):
        if not hasattr(self.called, "stack"):
            self.called.stack = []
        return self.called.stack

    def enter(self, module, inputs):
        stack = self.stack()
        if not stack or module not in self.numbers:
            self.name(stack[0] if stack else module, module)
        stack.append(module)
        self.mark(self.numbers[module])

    def leave(self, module, inputs, outputs):
        stack = self.stack()
        stack.pop()
        self.mark(self.numbers[stack[-1]] if stack else None)

    def mark(self, module):
        marks = self.threads.setdefault(threading.get_native_id(), [])
        marks.append((blocks(), module, None))

    def name(self, root, called):
        """Names the tree of a root, and the module itself where no tree has it."""
        for path, module in root.named_modules():
            self.add(module, f"{type(root).__name__}.{path}" if path else type(root).__name__)
        if called not in self.numbers:
            self.add(called, type(called).__name__)

    def add(self, module, name):
        if module not in self.numbers:
            self.numbers[module] = len(self.names)
            self.names.append([])
        names = self.names[self.numbers[module]]
        if name not in names:
            names.append(name)

    def described(self):
        threads = [{"thread": it, "marks": marks} for it, marks in self.threads.items()]
        return {"threads": threads, "names": self.names}


class Account:
    """The account of one process."""

    def __init__(self, packages, modules):
        reference.start_recording()
        self.packages = packages
        self.kept = reference.Checkpoints()
        self.iterations = None
        self.starts = None
        self.modules = Modules() if modules else None
        if modules:
            self.modules.watch()

    def write(self, folder):
        described = reference.reference(self.kept, [], 0)
        name_cells(described["devices"])
        described["packages"] = {it: importlib.metadata.version(it) for it in self.packages}
        described["iterations"] = self.iterations
        described["starts"] = self.starts
        described["modules"] = self.modules.described() if self.modules else None
        reference.stop_recording()
        reference.write(os.path.join(folder, f"{os.getpid()}.json"), described)


def name_cells(devices):
    """Names the cells of a notebook by their numbers, by IPython's own map of the files that it makes up."""
    if "IPython" not in sys.modules:
        return
    shell = sys.modules["IPython"].get_ipython()
    cells = shell.compile._filename_map if shell else {}
    for device in devices:
        for event in device["events"]:
            for frame in event["frames"]:
                if frame["file"] in cells:
                    frame["file"] = f"In[{cells[frame['file']]}]"


def blocks():
    """How many blocks the allocator has handed out so far."""
    stats = torch.cuda.memory_stats_as_nested_dict()
    return stats["allocation"]["all"]["allocated"] if stats else 0


def iteration():
    """An iteration of the program's own loop ends."""
    if account is not None:
        account.iterations = (account.iterations or 0) + 1
        account.kept.record(f"after iteration {account.iterations}")
    time.sleep(STEP_SECONDS)


def iteration_starts(line):
    """The line at which iterations start, for programs without an optimizer."""
    if account is not None:
        account.starts = line


def point(name):
    """A point at which the tensors can be compared."""
    tensor_reference.Points(os.environ.get(POINTS)).at(name)


@contextlib.contextmanager
def recording(packages=(), modules=True):
    """Keeps the account of this process, where its program is asked for one."""
    global account
    folder = os.environ.get(FOLDER)
    if not folder:
        yield
        return
    account = Account(packages, modules)
    yield
    account.write(folder)
    # Autograd's threads still drop Python objects; an interpreter that ends now may abort.
    time.sleep(0.2)


def run(main, packages=(), modules=True, here=True):
    """Runs a program. `here` says whether this process itself uses the GPU; otherwise those that it starts do."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", help="the folder of accounts")
    parser.add_argument("--folder", help="where a test asks; without it nothing stops")
    options = parser.parse_args()
    if options.out:
        os.environ[FOLDER] = options.out
    if options.folder:
        os.environ[POINTS] = options.folder
    if here:
        with recording(packages, modules):
            main()
    else:
        main()
    if options.folder:
        tensor_reference.Points(options.folder).over()
