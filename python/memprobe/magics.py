"""The magics %memprobe and %%memprobe."""

import ast
import os
import tempfile

from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display

from .annotation import annotate
from .program import find_program, recording_command
from .recording import Recording, report
from .views import CellView


@magics_class
class MemprobeMagics(Magics):
    """Magics that record the GPU memory of the kernel's own process."""

    @magic_arguments()
    @argument("--program", metavar="PATH", help="the memprobe program (default: MEMPROBE_BIN, then PATH)")
    @argument("--detail", choices=("lines", "tensors", "full"), help="what to record (default: as `memprobe record`)")
    @argument("-o", "--output", metavar="FILE", help="keep the recording, for `memprobe report FILE`")
    @argument("-r", "--return", dest="returns", action="store_true", help="return the numbers by line")
    @argument("statement", nargs="*", help="the statement of the line magic")
    @line_cell_magic
    def memprobe(self, line, cell=None):
        """Run a line or cell, and show each of its lines with the GPU memory that it allocated.

        Examples:

            %memprobe y = model(x)

            %%memprobe
            y = model(x)
            loss = y.sum()
        """
        options, source = self._parse(line, cell)
        program = find_program(options.program)
        command = recording_command(program)
        # The first line of the cell has the magic.
        before = "" if cell is None else "\n"
        name, steps = self._compile(source, before)
        with tempfile.TemporaryDirectory(prefix="memprobe-") as folder:
            file = os.path.abspath(os.path.expanduser(options.output or os.path.join(folder, "cell.mprb")))
            detail = ["--detail", options.detail] if options.detail else []
            recording = Recording(command, file, detail)
            recording.start()
            try:
                for step in steps:
                    exec(step, self.shell.user_ns)
            finally:
                recording.stop()
                view = self._view(program, file, name, before + source, recording)
                display(view)
        return view.cell if options.returns else None

    def _parse(self, line, cell):
        """Returns the options and the source."""
        if cell is not None:
            return parse_argstring(self.memprobe, line), cell
        words = line.split()
        taken = 0
        while taken < len(words) and words[taken].startswith("-"):
            has_value = words[taken] in ("--program", "--detail", "-o", "--output")
            taken += 2 if has_value else 1
        options = parse_argstring(self.memprobe, " ".join(words[:taken]))
        return options, line.split(None, taken)[taken] if taken < len(words) else ""

    def _compile(self, source, before):
        """Compiles under the name of a cell; the value of a last expression is displayed, as of any cell."""
        shell = self.shell
        code = before + shell.transform_cell(source)
        # The current cell is in the history before it runs; the count of the shell may be that of the next one.
        number = max(len(shell.user_ns["In"]) - 1, 0)
        file = shell.compile.cache(code, number, raw_code=source)
        tree = shell.transform_ast(shell.compile.ast_parse(code, filename=file))
        body, last = tree.body, []
        shows = not source.rstrip().endswith(";")
        if body and isinstance(body[-1], ast.Expr) and shows:
            body, last = body[:-1], body[-1:]
        steps = [shell.compile(ast.Module(body, []), file, "exec")]
        if last:
            steps.append(shell.compile(ast.Interactive(last), file, "single"))
        return f"In[{number}]", steps

    def _view(self, program, file, name, source, recording):
        notes = list(recording.notes())
        if recording.began_before_pytorch:
            notes.append("PyTorch was imported while recording: import it in an earlier cell to record from the start")
        return CellView(annotate(report(program, file), name, source), notes)
