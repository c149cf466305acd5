"""The network of Ultralytics' YOLOv8, and its features of three sizes. A simulated GPU computes no boxes, without which
its loss fails; the sum of the features takes its place."""

import os
import tempfile

import torch

import framework_truth as truth


def main():
    with tempfile.TemporaryDirectory() as folder:
        # It keeps settings in a folder, and would look for a newer version of itself.
        os.environ.update(YOLO_CONFIG_DIR=folder, YOLO_OFFLINE="true")
        from ultralytics.nn.tasks import DetectionModel
    model = DetectionModel("yolov8n.yaml", ch=3, nc=4, verbose=False).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(6):
        features = model(torch.rand(2, 3, 64, 64, device="cuda"))
        sum(it.sum() for it in tensors(features)).backward()
        optimizer.step()
        optimizer.zero_grad()
        truth.iteration()
    truth.point("trained")


def tensors(found):
    if isinstance(found, torch.Tensor):
        return [found] if found.requires_grad else []
    parts = found.values() if isinstance(found, dict) else found
    return [it for part in parts for it in tensors(part)]


if __name__ == "__main__":
    truth.run(main, packages=["ultralytics"])
