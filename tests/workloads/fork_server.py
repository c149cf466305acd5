"""Starts workloads as forks of this process, which has imported PyTorch: an import costs 3 to 5 s of CPU time.

`sitecustomize` calls `serve_before_the_script` in an interpreter whose environment has the path of a socket,
`MEMPROBE_FORK_SERVER`. The script of that interpreter is an absolute path, longer than that of any workload, which
need not exist. A connection sends a line of JSON: `arguments` (a script and its arguments), `directory`, `settings` (environment
variables), and the paths of `stdout` and `stderr`. The answer is a line `pid N`; a line `status N` follows, as
`waitpid` returns it, when the workload has ended. A connection that closes before ends its workload.

In the child `serve` returns, and the interpreter goes on to run its script as after any start: no frame of the server
is left. The script's name
stands in the wide strings of `PyConfig` (CPython Include/cpython/initconfig.h, `run_filename` and `argv`), the
command line that others read lies where the kernel was told: the child replaces both. What it inherits besides, such
as the modules of PyTorch and the parent process, is what a server that loads its model before it forks leaves to its
workers.
"""

import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import struct
import sys

# The name of the script, to be overwritten in place.
PLACEHOLDER = sys.argv[0]

# Bytes of PyConfig that are searched. It has some 500.
CONFIG_BYTES = 1024

PR_SET_PDEATHSIG = 1


class Workload:
    """A workload that runs, and the connection that asked for it."""

    def __init__(self, connection):
        self.connection = connection
        self.request = b""
        self.pid = None
        self.pidfd = None


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
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        # The name appears when connections are accepted.
        listener.bind(path + ".new")
        listener.listen(64)
        os.rename(path + ".new", path)
        selector.register(listener, selectors.EVENT_READ)
        workloads = set()
        while True:
            for key, _ in selector.select():
                workload = key.data
                if workload is None:
                    workload = Workload(listener.accept()[0])
                    workloads.add(workload)
                    selector.register(workload.connection, selectors.EVENT_READ, workload)
                elif key.fd == workload.pidfd:
                    report_end(selector, workload)
                    workloads.remove(workload)
                elif received := receive(selector, workload):
                    if start(selector, workload, received):
                        close_all(workloads)
                        break
            else:
                continue
            break
    become(names, received)


def import_pytorch():
    """Imports what a training program has imported after its first optimizer."""
    import torch

    if hasattr(torch, "_disable_dynamo"):
        import torch._dynamo  # noqa: F401


def receive(selector, workload):
    """Returns the request once it is whole. Ends the workload of a connection that was closed."""
    part = workload.connection.recv(1 << 16)
    if not part:
        selector.unregister(workload.connection)
        if workload.pidfd is not None:
            signal.pidfd_send_signal(workload.pidfd, signal.SIGKILL)
        return None
    workload.request += part
    return json.loads(workload.request) if workload.request.endswith(b"\n") else None


def start(selector, workload, request):
    """Forks; returns True in the child."""
    # A child that a parent's collector has just left is like others: nothing waits to be collected.
    gc.collect(0)
    pid = os.fork()
    if pid == 0:
        return True
    workload.pid, workload.pidfd = pid, os.pidfd_open(pid)
    selector.register(workload.pidfd, selectors.EVENT_READ, workload)
    send(workload.connection, f"pid {pid}\n")
    return False


def report_end(selector, workload):
    """Answers with the status of a workload that has ended."""
    _, status = os.waitpid(workload.pid, 0)
    selector.unregister(workload.pidfd)
    os.close(workload.pidfd)
    if workload.connection in {key.fileobj for key in selector.get_map().values()}:
        selector.unregister(workload.connection)
        send(workload.connection, f"status {status}\n")
    workload.connection.close()


def send(connection, line):
    """Sends a line; whoever closed the connection misses nothing."""
    try:
        connection.sendall(line.encode())
    except BrokenPipeError:
        pass


def close_all(workloads):
    """Closes in the child what belongs to other workloads and to this one's request."""
    for workload in workloads:
        workload.connection.close()
        if workload.pidfd is not None:
            os.close(workload.pidfd)


def become(names, request):
    """Makes this process the one that was asked for."""
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(request[name], os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(file, descriptor)
        os.close(file)
    os.chdir(request["directory"])
    os.environ.update(request["settings"])
    script, *rest = request["arguments"]
    # `__main__` has an absolute path since 3.9; `sys.argv` has what was written.
    whole = os.path.join(request["directory"], script)
    for address, is_argument in names:
        write_wide(address, script if is_argument else whole)
    sys.argv[:] = [script, *rest]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[1:] = [script, *rest]
    with open("/proc/self/cmdline", "rb") as file:
        program = file.read().split(b"\0")[0]
    set_command_line([program, *map(os.fsencode, request["arguments"])])


def names_of_the_script():
    """Returns the address of each wide string of `PyConfig` with the placeholder, and whether it is in a list."""
    config = ctypes.pythonapi._Py_GetConfig
    config.restype = ctypes.c_void_p
    names = []
    with open("/proc/self/mem", "rb", 0) as memory:
        for word in words(memory, config(), CONFIG_BYTES // 8):
            if is_placeholder(memory, word):
                names.append((word, False))
                continue
            for inner in words(memory, word, 2):
                if is_placeholder(memory, inner):
                    names.append((inner, True))
    if {is_argument for _, is_argument in names} != {False, True}:
        sys.exit("fork server: this Python keeps the name of its script in another place")
    return names


def words(memory, address, count):
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
        sys.exit(f"fork server: the path is too long: {text}")
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
        sys.exit(f"fork server: the command line is too long: {arguments}")
    ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)


def prctl(*arguments):
    """Calls prctl(2)."""
    padded = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:5]]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(*padded) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl{arguments}: {os.strerror(error)}")
