"""Starts workloads as forks of this process, which has imported PyTorch: an import costs 3 to 5 s of CPU time.

`sitecustomize` calls `serve_before_the_script` in an interpreter whose environment has the path of a socket,
`MEMPROBE_FORK_SERVER`. The script of that interpreter is an absolute path, longer than that of any workload, which
need not exist. A connection sends a line of JSON: `options` of Python (`-W ignore` or none), `arguments` (a script
and its arguments), `directory`, `settings` (environment variables), and the paths of `stdout` and `stderr`. The answer
is a line `pid N`; a line `status N` follows, as `waitpid` returns it, when the workload has ended. A connection that
closes before ends its workload.

In the child `serve` returns, and the interpreter goes on to run its script as after any start: no frame of the server
is left. The script's name stands in the wide strings of `PyConfig` (CPython Include/cpython/initconfig.h,
`run_filename` and `argv`), and the command line in the memory that `/proc/PID/cmdline` shows: the child overwrites
both. What it inherits besides, such as the modules of PyTorch and the parent process, is what a server that loads its
model before it forks leaves to its workers.
"""

import ctypes
import json
import os
import selectors
import signal
import socket
import struct
import sys
import warnings

# The name of the script, to be overwritten in place.
PLACEHOLDER = sys.argv[0]

# Bytes from the begin of PyConfig that are searched for pointers to the name.
CONFIG_BYTES = 1024

PR_SET_PDEATHSIG = 1


def serve_before_the_script():
    """Has `serve` called when the interpreter is whole, but has not read its script.

    It then asks for an importer of the script's path (`pymain_get_importer`, CPython Modules/main.c).
    """

    def hook(path):
        if path == PLACEHOLDER:
            serve(os.environ.pop("MEMPROBE_FORK_SERVER"))
        raise ImportError

    sys.path_hooks.insert(0, hook)


def serve(path):
    """Forks a workload for each request. Returns in the children alone."""
    names = names_of_the_script()
    import_pytorch()
    end_with_parent()
    with Server(path) as server:
        request = server.wait_as_child()
    become(names, request)


def import_pytorch():
    """Imports what a training program has imported after its first optimizer."""
    import torch

    if hasattr(torch, "_disable_dynamo"):
        import torch._dynamo  # noqa: F401


class Workload:
    """A workload that runs, or whose request is not whole, and the connection that asked for it."""

    def __init__(self, connection):
        self.connection = connection
        self.request = b""
        self.pid = None
        self.pidfd = None

    def close(self):
        self.connection.close()
        if self.pidfd is not None:
            os.close(self.pidfd)

    def send(self, line):
        """Sends a line; whoever closed the connection misses nothing."""
        try:
            self.connection.sendall(line.encode())
        except OSError:
            pass


class Server:
    """Connections and the workloads that they asked for."""

    def __init__(self, path):
        self.workloads = set()
        self.selector = selectors.DefaultSelector()
        self.listener = socket.socket(socket.AF_UNIX)
        # The name appears when connections are accepted.
        self.listener.bind(path + ".new")
        self.listener.listen(64)
        os.rename(path + ".new", path)
        self.selector.register(self.listener, selectors.EVENT_READ)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Closes in a child what belongs to the server."""
        for workload in self.workloads:
            workload.close()
        self.listener.close()
        self.selector.close()

    def wait_as_child(self):
        """Serves; returns in each child, with its request."""
        while True:
            for key, _ in self.selector.select():
                workload = key.data
                if workload is None:
                    self.accept()
                elif workload not in self.workloads:
                    continue  # Its end was reported in this round.
                elif key.fd == workload.pidfd:
                    self.report_end(workload)
                elif (request := self.receive(workload)) and self.fork(workload) == 0:
                    return request

    def accept(self):
        workload = Workload(self.listener.accept()[0])
        self.workloads.add(workload)
        self.selector.register(workload.connection, selectors.EVENT_READ, workload)

    def receive(self, workload):
        """Returns the request once it is whole. Ends the workload of a connection that was closed."""
        part = workload.connection.recv(1 << 16)
        if part:
            workload.request += part
            return json.loads(workload.request) if part.endswith(b"\n") else None
        self.selector.unregister(workload.connection)
        if workload.pidfd is None:
            self.forget(workload)
        else:
            signal.pidfd_send_signal(workload.pidfd, signal.SIGKILL)
        return None

    def fork(self, workload):
        """Returns the PID, or 0 in the child."""
        pid = os.fork()
        if pid != 0:
            workload.pid, workload.pidfd = pid, os.pidfd_open(pid)
            self.selector.register(workload.pidfd, selectors.EVENT_READ, workload)
            workload.send(f"pid {pid}\n")
        return pid

    def report_end(self, workload):
        """Answers with the status of a workload that has ended."""
        _, status = os.waitpid(workload.pid, 0)
        self.selector.unregister(workload.pidfd)
        if workload.connection in (key.fileobj for key in self.selector.get_map().values()):
            self.selector.unregister(workload.connection)
        workload.send(f"status {status}\n")
        self.forget(workload)

    def forget(self, workload):
        self.workloads.remove(workload)
        workload.close()


def become(names, request):
    """Makes this process the one that was asked for."""
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(request[name], os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(file, descriptor)
        os.close(file)
    os.chdir(request["directory"])
    os.environ.update(request["settings"])
    options, (script, *rest) = request["options"], request["arguments"]
    if options:
        sys.warnoptions.append("ignore")
        warnings.filterwarnings("ignore")
    # `__main__` has an absolute path since 3.9; `sys.argv` has what was written.
    whole = os.path.join(request["directory"], script)
    for address, is_argument in names:
        write_wide(address, script if is_argument else whole)
    sys.argv[:] = [script, *rest]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[1:] = [*options, script, *rest]
    with open("/proc/self/cmdline", "rb") as file:
        words = file.read().split(b"\0")
    # A Python with its own C library is started by its loader.
    program = words[: words.index(os.fsencode(PLACEHOLDER))]
    set_command_line([*program, *map(os.fsencode, [*options, script, *rest])])


def names_of_the_script():
    """Returns the address of each wide string of `PyConfig` with the placeholder, and whether it is in a list."""
    config = ctypes.pythonapi._Py_GetConfig
    config.restype = ctypes.c_void_p
    names = []
    with open("/proc/self/mem", "rb", 0) as memory:
        for word in words_at(memory, config(), CONFIG_BYTES // 8):
            if is_placeholder(memory, word):
                names.append((word, False))
                continue
            for inner in words_at(memory, word, 2):
                if is_placeholder(memory, inner):
                    names.append((inner, True))
    if {is_argument for _, is_argument in names} != {False, True}:
        give_up("this Python keeps the name of its script in another place")
    return names


def words_at(memory, address, count):
    """Returns words at an address; none where nothing is mapped."""
    return struct.unpack(f"{count}Q", data) if (data := read(memory, address, 8 * count)) else ()


def is_placeholder(memory, address):
    """True if the wide string of the placeholder is there."""
    wide = PLACEHOLDER.encode("utf-32-le")
    return read(memory, address, len(wide)) == wide


def read(memory, address, size):
    """Returns bytes of this process; None where not all of them are mapped."""
    try:
        memory.seek(address)
        data = memory.read(size)
    except (OSError, OverflowError, ValueError):
        return None
    return data if len(data) == size else None


def write_wide(address, text):
    """Overwrites the placeholder."""
    if len(text) > len(PLACEHOLDER):
        give_up(f"the path is too long: {text}")
    wide = (text + "\0").encode("utf-32-le")
    ctypes.memmove(address, wide, len(wide))


def set_command_line(arguments):
    """Has /proc/PID/cmdline show these arguments, with zeros up to the end of what was there."""
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(") ")[2].split()
    # Fields 48 and 49 of proc_pid_stat(5); the state is the third.
    start, end = int(fields[45]), int(fields[46])
    line = b"".join(argument + b"\0" for argument in arguments)
    if len(line) > end - start:
        give_up(f"the command line is too long: {arguments}")
    ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)


def end_with_parent():
    """Has the kernel end this process with its parent; its children keep running (prctl(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM)) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_PDEATHSIG")


def give_up(reason):
    """Ends this process: whoever asked for an importer goes on after `SystemExit`."""
    print("fork server:", reason, file=sys.stderr, flush=True)
    os._exit(1)
