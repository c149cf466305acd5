"""A recorded cell as text for a terminal, and as HTML for a notebook."""

from html import escape

from .annotation import bytes_text

HEADS = ("LIVE", "PEAK", "ALLOCATED", "LINE")

# Most rows of other code.
MAX_ELSEWHERE = 10


class CellView:
    """Source of a cell with the memory of its lines; IPython chooses the form."""

    def __init__(self, cell, notes):
        self.cell = cell
        self.notes = notes

    def __str__(self):
        widths = (10, 10, 10)
        head = "  ".join(name.rjust(width) for name, width in zip(HEADS, widths))
        out = [f"{self.cell.name}: {self.summary()}", f"{head}  {HEADS[-1]}"]
        for number, text, memory in self._source_rows():
            cells = "  ".join(value.rjust(width) for value, width in zip(amounts(memory), widths))
            out.append(f"{cells}  {number:>4} {text}".rstrip())
        elsewhere, left_out = self._elsewhere_rows()
        if elsewhere:
            out.append("other code")
        for place, memory in elsewhere:
            cells = "  ".join(value.rjust(width) for value, width in zip(amounts(memory), widths))
            out.append(f"{cells}  {place}")
        return "\n".join([*out, *left_out, *self._sentences()])

    def _repr_pretty_(self, printer, _cycle):
        printer.text(str(self))

    def _repr_html_(self):
        most = max((line.live for line in self.cell.lines.values()), default=0)
        head = "".join(f'<th style="text-align:right">{name}</th>' for name in HEADS[:3])
        rows = [f'<tr>{head}<th></th><th style="text-align:left">{escape(self.cell.name)}</th></tr>']
        for number, text, memory in self._source_rows():
            code = f'<code style="white-space:pre">{escape(text)}</code>'
            rows.append(html_row(amounts(memory), str(number), code, share(memory, most)))
        elsewhere, left_out = self._elsewhere_rows()
        if elsewhere:
            rows.append('<tr><th colspan="5" style="text-align:left">other code</th></tr>')
        for place, memory in elsewhere:
            rows.append(html_row(amounts(memory), "", escape(place), 0))
        sentences = "".join(f"<br>{escape(text)}" for text in [*left_out, *self._sentences()])
        return (
            f"<div><b>memprobe</b> {escape(self.summary())}"
            f'<table style="font-variant-numeric:tabular-nums">{"".join(rows)}</table>'
            f"<small>LIVE: still allocated at the end. PEAK: most at once. ALLOCATED: all allocations.{sentences}"
            "</small></div>"
        )

    def summary(self):
        """Returns the totals in a sentence."""
        total, cell = self.cell.total(), self.cell
        return (
            f"{bytes_text(total.live)} of {bytes_text(total.allocated)} allocated by this run are live; "
            f"the GPU has {bytes_text(cell.allocated)} allocated, {bytes_text(cell.before)} of it from before"
        )

    def _source_rows(self):
        for number, text in enumerate(self.cell.source, 1):
            if number > 1 or text:
                yield number, text, self.cell.lines.get(number)

    def _elsewhere_rows(self):
        rows = sorted(self.cell.elsewhere.items(), key=lambda row: (-row[1].live, -row[1].peak, row[0]))
        rest = rows[MAX_ELSEWHERE:]
        left_out = []
        if rest:
            live = bytes_text(sum(memory.live for _, memory in rest))
            left_out.append(f"{len(rest)} more places have {live} live")
        return rows[:MAX_ELSEWHERE], left_out

    def _sentences(self):
        cell = self.cell
        if cell.unaccounted:
            yield f"{bytes_text(cell.unaccounted)} are unaccounted for, since events were lost"
        if any(line.rows > 1 for line in cell.lines.values()):
            yield "≤: a line with backward passes or several GPUs has the sum of their peaks"
        yield from self.notes


def amounts(memory):
    """Returns the cells of a line; empty without allocations."""
    if memory is None:
        return ("", "", "")
    bound = "≤" if memory.rows > 1 else ""
    return (bytes_text(memory.live), bound + bytes_text(memory.peak), bytes_text(memory.allocated))


def share(memory, most):
    """Returns the percentage of the largest line."""
    return 100 * memory.live // most if memory is not None and most > 0 else 0


def html_row(values, number, content, percent):
    """Returns a row of the table; `content` is HTML already."""
    bar = f"background:linear-gradient(90deg,rgba(220,120,40,.35) {percent}%,transparent {percent}%)" if percent else ""
    cells = "".join(f'<td style="text-align:right">{escape(value)}</td>' for value in values)
    return (
        f'<tr>{cells}<td style="text-align:right;opacity:.6">{number}</td>'
        f'<td style="text-align:left;{bar}">{content}</td></tr>'
    )
