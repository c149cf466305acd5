"""Moments of a workload at which its memory can be compared.

A workload calls `checkpoint("after step 3")`. Alone that does nothing; under `reference.py`
the driver has set `recorder` and the allocator's own totals of that moment are kept.
"""

recorder = None


def checkpoint(label):
    """Marks a moment. `label` is unique within a run."""
    if recorder is not None:
        recorder(label)
