"""A FastAPI application served by uvicorn, which answers in its pool of threads."""

import threading
import time

import fastapi
import httpx
import torch
import uvicorn
from torch import nn

import framework_truth as truth

application = fastapi.FastAPI()
model = None


class Answerer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(256, 64)
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 256))

    def forward(self, words):
        return self.layers(self.embedding(words))


def predict(length):
    words = torch.zeros(1, length, dtype=torch.long, device="cuda")
    with torch.inference_mode():
        return model(words)


@application.get("/answer/{length}")
def answer(length: int):
    scores = predict(length)
    return {"scores": list(scores.shape)}


def main():
    global model
    model = Answerer().cuda().eval()
    # All memory of a thread of the pool lies below `answer`: a line within it is needed.
    truth.iteration_starts("api.py:%d" % (predict.__code__.co_firstlineno + 1))
    settings = uvicorn.Config(application, port=0, log_level="error")
    server = uvicorn.Server(settings)
    serving = threading.Thread(target=server.run)
    serving.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        for request in range(8):
            client.get(f"/answer/{8 + request}").raise_for_status()
            truth.iteration()
    truth.point("answered")
    server.should_exit = True
    serving.join()


if __name__ == "__main__":
    truth.run(main, packages=["fastapi", "uvicorn"])
