"""The memprobe program: where it is, and the command that may run it."""

import os
import shutil

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
    wanted = given or os.environ.get(PROGRAM_VARIABLE) or "memprobe"
    found = shutil.which(wanted)
    if found is None:
        raise MemprobeError(
            f"no program {wanted}: install memprobe, or name it with --program PATH or the variable {PROGRAM_VARIABLE}"
        )
    return os.path.realpath(found)


def recording_command(program):
    """Returns the command that runs the program with the rights to record."""
    if os.geteuid() == 0 or _has_capabilities(program):
        return [program]
    sudo = shutil.which("sudo")
    if sudo is None:
        raise MemprobeError(
            "recording needs root, and there is no sudo: start the notebook's server as root, or install sudo"
        )
    return [sudo, "-n", "--", program]


def _has_capabilities(program):
    try:
        return bool(os.getxattr(program, CAPABILITIES))
    except OSError:
        return False


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
