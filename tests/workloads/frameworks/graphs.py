"""A graph network of PyTorch Geometric: message passing and attention over the edges of one graph."""

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, global_mean_pool

import framework_truth as truth


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = GCNConv(16, 32)
        self.second = GATConv(32, 8, heads=4)
        self.last = torch.nn.Linear(32, 5)

    def forward(self, graph):
        nodes = self.first(graph.x, graph.edge_index).relu()
        nodes = self.second(nodes, graph.edge_index).relu()
        return self.last(global_mean_pool(nodes, graph.batch, size=8))


def main():
    graph = Data(x=torch.rand(400, 16), edge_index=torch.randint(400, (2, 2000)))
    graph.y, graph.batch = torch.zeros(8, dtype=torch.long), torch.arange(400) % 8
    graph = graph.to("cuda")
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(8):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(graph), graph.y).backward()
        optimizer.step()
        truth.iteration()
    truth.point("trained")


if __name__ == "__main__":
    truth.run(main, packages=["torch-geometric"])
