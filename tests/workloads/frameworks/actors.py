"""Two actors of a local Ray, each with a GPU."""

import ray
import torch
from torch import nn

import framework_truth as truth


@ray.remote(num_gpus=1)
class Learner:
    def __init__(self, width):
        self.keeping = truth.recording(["ray"])
        self.keeping.__enter__()
        self.model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10)).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def train(self, steps):
        for _ in range(steps):
            inputs = torch.randn(16, 64, device="cuda")
            self.model(inputs).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            truth.iteration()

    def stand_still(self):
        truth.point("trained")

    def finish(self):
        self.keeping.__exit__(None, None, None)


def main():
    ray.init(num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
    learners = [Learner.remote(128), Learner.remote(256)]
    ray.get([learner.train.remote(8) for learner in learners])
    ray.get(learners[0].stand_still.remote())
    ray.get([learner.finish.remote() for learner in learners])
    ray.shutdown()


if __name__ == "__main__":
    truth.run(main, here=False)
