"""IPython magics %memprobe and %%memprobe: GPU memory of a line or cell, by line."""


def load_ipython_extension(shell):
    """Registers the magics; called by %load_ext memprobe."""
    from .magics import MemprobeMagics

    shell.register_magics(MemprobeMagics)
