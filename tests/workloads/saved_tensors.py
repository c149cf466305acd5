"""Tensors that nodes of the graph keep for the backward pass, in every way that PyTorch knows."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tensor_reference


class Cube(torch.autograd.Function):
    """Keeps its input, a tensor that Python never sees again, and one as an attribute."""

    @staticmethod
    def forward(ctx, x):
        square = x * x
        ctx.save_for_backward(x, square)
        ctx.aside = x + 1
        return square * x

    @staticmethod
    def backward(ctx, grad):
        _, square = ctx.saved_tensors
        return 3 * square * grad


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.conv = nn.Conv1d(32, 16, 3)
        self.norm = nn.LayerNorm(16)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(16, 8)

    def forward(self, tokens):
        x = self.embed(tokens).transpose(1, 2)
        x = torch.nn.functional.gelu(self.conv(x)).transpose(1, 2)
        x = self.drop(self.norm(x))
        return self.out(x).softmax(-1).log().mean()


def main(points, options):
    tokens = torch.zeros(4, 24, dtype=torch.int64, device="cuda")
    net = Net().cuda()
    loss = net(tokens)
    points.at("layers")
    del loss
    x = torch.zeros(3000, device="cuda", requires_grad=True)
    cubed = Cube.apply(x)
    points.at("custom")
    del cubed
    y = x * 1
    y[10:20] = x[:10] * 2
    y.mul_(3)
    z = y.exp()
    points.at("in place")
    del y, z
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(3)]).cuda()
    h = torch.zeros(16, 32, device="cuda", requires_grad=True)
    out = h
    for layer in layers:
        out = checkpoint(layer, out, use_reentrant=False)
    points.at("checkpoint")
    out = h
    for layer in layers:
        out = checkpoint(layer, out, use_reentrant=True)
    points.at("checkpoint again")
    with torch.autograd.graph.saved_tensors_hooks(lambda it: it.cpu(), lambda it: it.cuda()):
        out = layers(h)
    points.at("moved by hooks")
    with torch.autograd.graph.save_on_cpu():
        out = layers(h)
    points.at("saved on CPU")
    out = layers(h)
    for _ in range(200):
        out = (out * out).tanh()
    points.at("long graph")
    out.sum().backward()
    points.at("freed")
    (gradient,) = torch.autograd.grad(layers(h).sin().sum(), h, create_graph=True)
    points.at("second order")
    del gradient, out
    query = torch.zeros(2, 4, 64, 16, device="cuda", requires_grad=True)
    attended = nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    points.at("attention")
    del attended


if __name__ == "__main__":
    tensor_reference.run(main)
