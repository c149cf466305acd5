"""Bytes of each line of a cell, from the table of lines of a recording."""

from dataclasses import dataclass, field

CPU = "cpu"


@dataclass
class LineMemory:
    """Memory that a line of Python allocated, with the backward passes of its operations."""

    live: int = 0
    # Most live bytes at once; with several rows the sum of their peaks, which need not be at one moment.
    peak: int = 0
    allocated: int = 0
    blocks: int = 0
    rows: int = 0

    def add(self, row):
        self.live += row["live"]
        self.peak += row["peak"]
        self.allocated += row["alloc_bytes"]
        self.blocks += row["allocs"]
        self.rows += 1


@dataclass
class CellMemory:
    """Memory of a recorded cell on all GPUs."""

    name: str
    source: list
    # By line number of the cell.
    lines: dict = field(default_factory=dict)
    # By place, of all other code.
    elsewhere: dict = field(default_factory=dict)
    allocated: int = 0
    before: int = 0
    unaccounted: int = 0

    def total(self):
        """Returns the memory of all lines."""
        total = LineMemory()
        for line in [*self.lines.values(), *self.elsewhere.values()]:
            total.live += line.live
            total.allocated += line.allocated
            total.blocks += line.blocks
        return total


def annotate(report, name, source):
    """Divides the rows of a report among the lines of a cell and other code."""
    cell = CellMemory(name, source.splitlines())
    for device in report["devices"]:
        if device["device"] == CPU:
            continue
        cell.allocated += device["allocated"]
        cell.before += device["before_attach"]
        cell.unaccounted += device["unaccounted"]
        for row in device["lines"]:
            if row["file"] == name and row["line"]:
                cell.lines.setdefault(row["line"], LineMemory()).add(row)
            else:
                cell.elsewhere.setdefault(place(row), LineMemory()).add(row)
    return cell


def place(row):
    """Returns the text of a row of other code."""
    if not row["file"]:
        return row["reason"] or row["thread"] or "unknown"
    where = f"{row['file']}:{row['line']}" if row["line"] else row["file"]
    return f"{where} {row['function'] or ''}".strip()


def bytes_text(number):
    """Returns a number of bytes for people, as memprobe prints it."""
    sign, number = ("-" if number < 0 else ""), abs(number)
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= size:
            return f"{sign}{number / size:.2f} {unit}"
    return f"{sign}{number} B"
