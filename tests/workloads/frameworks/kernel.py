"""Cells of a notebook, executed one by one by ipykernel."""

import jupyter_client

import framework_truth as truth

CELLS = [
    "import torch\nfrom torch import nn\nimport framework_truth as truth",
    "keeping = truth.recording(['ipykernel', 'ipython'])\nkeeping.__enter__()",
    "model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).cuda()\n"
    "optimizer = torch.optim.Adam(model.parameters())",
    "def train(steps):\n"
    "    for _ in range(steps):\n"
    "        inputs = torch.randn(16, 64, device='cuda')\n"
    "        model(inputs).square().mean().backward()\n"
    "        optimizer.step()\n"
    "        optimizer.zero_grad()\n"
    "        truth.iteration()\n",
    "train(4)",
    # Another text: the same one would be the same file for IPython, with the number of the last run.
    "train(2 + 2)",
    "model(torch.randn(2, 64, device='cuda'))",
    "truth.point('trained')",
    "keeping.__exit__(None, None, None)",
]


def main():
    manager, client = jupyter_client.manager.start_new_kernel(kernel_name="python3")
    try:
        for cell in CELLS:
            answer = client.execute_interactive(cell, timeout=170)["content"]
            if answer["status"] != "ok":
                raise SystemExit(f"{cell}: {answer['ename']}: {answer['evalue']}")
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


if __name__ == "__main__":
    truth.run(main, here=False)
