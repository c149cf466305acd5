"""Spares each workload the collector's last passes: Python imports this module at its start.

The collector of an interpreter that ends looks at each of the 400,000 objects of PyTorch several times: a fifth of
the CPU time of a process that imports PyTorch and ends (0.8 s of 3.6). What reference counts free is freed as
before; a workload whose end matters takes it back by `atexit.unregister(gc.freeze)`.
"""

import atexit
import gc

atexit.register(gc.freeze)
