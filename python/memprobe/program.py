"""The memprobe program: where it is, and the command that may run it."""

import os
import shutil
import stat

PROGRAM_VARIABLE = "MEMPROBE_BIN"

# Extended attribute of a program with capabilities of its own.
CAPABILITIES = "security.capability"


class MemprobeError(Exception):
    """Recording is impossible; the text says what to do."""

    def _render_traceback_(self):
        """Lines that IPython shows in place of a traceback."""
        return [f"memprobe: {self}"]


def find_program(given=None):
    """Returns the path of the program: the given one, that of MEMPROBE_BIN, or the one on PATH."""
    wanted = os.path.expanduser(given or os.environ.get(PROGRAM_VARIABLE) or "memprobe")
    found = shutil.which(wanted)
    if found is not None:
        return os.path.realpath(found)
    closed = shutil.which(wanted, mode=os.F_OK)
    if closed is not None and os.path.isfile(closed):
        raise MemprobeError(advice_on_closed(closed))
    raise MemprobeError(
        f"no program {wanted}: install memprobe, or name it with --program PATH or the variable {PROGRAM_VARIABLE}"
    )


def recording_command(program):
    """Returns the command that runs the program with the rights to record."""
    if os.geteuid() == 0 or _has_capabilities(program):
        return [program]
    sudo = shutil.which("sudo")
    if sudo is None:
        raise MemprobeError(
            "recording needs root, and there is no sudo on PATH: install sudo, or start the notebook's server as root"
        )
    return [sudo, "-n", "--", program]


def _has_capabilities(program):
    try:
        return bool(os.getxattr(program, CAPABILITIES))
    except OSError:
        return False


def advice_on_closed(program):
    """Returns what to do if this user may not run the program."""
    status = os.stat(program)
    advice = "name another one with --program PATH"
    if status.st_mode & stat.S_IXGRP:
        group = _group(status.st_gid)
        advice = f"join its group with `sudo usermod -aG {group} {_user()}` and log in again, or {advice}"
    return f"{_user()} may not run {program}: {advice}"


def advice_on_sudo(program, message):
    """Returns what to do after sudo refused to run the program."""
    return (
        f"sudo refused to run it without a password ({message}). Allow it with `sudo visudo -f /etc/sudoers.d/memprobe` "
        f"and the line\n    {_user()} ALL=(root) NOPASSWD: {program}\nor start the notebook's server as root"
    )


def _user():
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _group(gid):
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
