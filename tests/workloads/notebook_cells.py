"""A notebook run by its own client, with the magics of memprobe; prints what its cells say as JSON."""

import json

import nbformat
from nbclient import NotebookClient

CELLS = [
    """%load_ext memprobe
import torch
kept = torch.ones(1000, device="cuda")
def helper(n):
    return torch.empty(n, device="cuda")
""",
    "before = torch.cuda.memory_allocated()",
    """%%memprobe -r
first = torch.empty(1 << 20, device="cuda")
second = torch.empty(1 << 18, device="cuda"); del first
third = helper(5000)
for i in range(100):
    fourth = torch.empty(3000, device="cuda")
layer = torch.nn.Linear(64, 64, device="cuda")
layer(torch.ones(8, 64, device="cuda")).sum().backward()
del kept
""",
    """cell = _
print(json.dumps({
    "change": torch.cuda.memory_allocated() - before,
    "live": cell.total().live,
    "before": [before, cell.before],
    "lines": {number: memory.live for number, memory in cell.lines.items()},
    "blocks": {number: memory.blocks for number, memory in cell.lines.items()},
    "elsewhere": {place: memory.live for place, memory in cell.elsewhere.items()},
}))
""".replace("json.dumps", "__import__('json').dumps"),
    """import os
output = os.environ["RECORDED_CELL"]
%memprobe -o $output fifth = torch.empty(7000, device="cuda")
""",
    "%%memprobe\n1 / 0",
    "%memprobe --program /missing x = 1",
    # A program of root alone.
    "%memprobe --program {output}.closed x = 1",
    """os.environ["PATH"] = "/missing"
%memprobe x = 1
""",
    # The folder has a sudo that asks for a password.
    """os.environ["PATH"] = output + ".refused"
%memprobe x = 1
""",
]


def text(output):
    if output.output_type == "stream":
        return output.text
    if output.output_type == "error":
        return f"{output.ename}: {output.evalue}"
    return output.data.get("text/html") or output.data.get("text/plain", "")


notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python", "language": "python"}
NotebookClient(notebook, timeout=300, allow_errors=True).execute()
print(json.dumps([[text(output) for output in cell.outputs] for cell in notebook.cells]))
