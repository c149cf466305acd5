"""A recording of this process from its start to its stop, and the report on it."""

import json
import os
import pty
import queue
import subprocess
import sys
import threading
import time

from .program import MemprobeError, advice_on_sudo

# Lines on standard error after which a process is watched.
RECORDS = "recording "
WAITS = "to import PyTorch"

# Seconds until the probes are in place, and until the recording is whole.
START_LIMIT = 60
STOP_LIMIT = 120

# Gives the command a terminal of its own, through which Ctrl-C also reaches a program that sudo runs as root.
TERMINAL = """
import errno, fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
try:
    os.execv(sys.argv[1], sys.argv[1:])
except OSError as error:
    advice = ": the machine withholds a capability that `getcap` shows of it" if error.errno == errno.EPERM else ""
    sys.exit(f"{sys.argv[1]} cannot be started: {error.strerror}{advice}")
"""

CTRL_C = b"\x03"


class Recording:
    """Records this process between start() and stop()."""

    def __init__(self, command, file, options=()):
        self._command = command
        self._program = command[-1]
        self._arguments = ["record", "--pid", str(os.getpid()), "-o", file, *options]
        self._lines = queue.Queue()
        self._said = []
        self._process = None
        self._terminal = None
        # True if PyTorch was not imported yet when the recording began.
        self.began_before_pytorch = False

    def start(self):
        """Returns once the probes are in place. Otherwise nothing is recorded any more."""
        self._terminal, terminal = pty.openpty()
        try:
            self._start(terminal)
        except BaseException:
            # KeyboardInterrupt too: the user need not wait for the probes.
            self._abandon()
            raise

    def _start(self, terminal):
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", TERMINAL, *self._command, *self._arguments],
                stdin=terminal,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
        finally:
            os.close(terminal)
        threading.Thread(target=self._read, daemon=True).start()
        deadline = time.monotonic() + START_LIMIT
        while True:
            line = self._next_line(deadline - time.monotonic())
            if line is None:
                raise self._failure("it did not begin to record")
            if WAITS in line:
                self.began_before_pytorch = True
                return
            if line.startswith(f"memprobe: {RECORDS}"):
                return

    def stop(self):
        """Ends the recording; returns once its file is whole."""
        if self._process.poll() is None:
            os.write(self._terminal, CTRL_C)
        try:
            self._process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            raise MemprobeError(f"the recorder (PID {self._process.pid}) does not end: end it by hand") from None
        finally:
            os.close(self._terminal)
        while self._next_line(1) is not None:
            pass
        if self._process.returncode != 0:
            raise self._failure("the recording failed")

    def _abandon(self):
        """Ends a recorder that did not begin to record."""
        deadline = time.monotonic() + STOP_LIMIT
        while self._process is not None and self._process.poll() is None and time.monotonic() < deadline:
            # Its terminal may not be its own yet, so that Ctrl-C is lost.
            os.write(self._terminal, CTRL_C)
            try:
                self._process.wait(1)
            except subprocess.TimeoutExpired:
                pass
        os.close(self._terminal)

    def notes(self):
        """Returns the recorder's warnings."""
        return [line for line in self._said if "warning" in line or "lost" in line and "lost 0" not in line]

    def _read(self):
        for line in self._process.stderr:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _next_line(self, seconds):
        """Returns the next line on standard error; None at its end, or after the time."""
        try:
            line = self._lines.get(timeout=max(seconds, 0))
        except queue.Empty:
            return None
        if line is None:
            self._lines.put(None)
            return None
        self._said.append(line)
        return line

    def _failure(self, what):
        said = "\n".join(self._said[-5:])
        if len(self._command) > 1 and "sudo:" in said:
            return MemprobeError(advice_on_sudo(self._program, said.replace("sudo: ", "")))
        return MemprobeError(f"{what}:\n{said}" if said else what)


def report(program, file):
    """Returns the table of lines of a recording."""
    command = [program, "report", file, "--by", "line", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise MemprobeError(done.stderr.strip() or "the recording cannot be read")
    return json.loads(done.stdout)
