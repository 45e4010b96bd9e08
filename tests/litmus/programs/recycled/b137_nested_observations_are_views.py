"""The top level of an observation is copied, its nested leaves stay views of a worker's memory.

thu-ml/tianshou#1281: `obs` equals `obs_next`.
"""

from __future__ import annotations

import numpy as np
import torch

ENTRY = "B137"
KIND = "recycled"
SCHEDULES = "lazy"


class Worker:
    def __init__(self):
        self.reward = np.zeros(1, np.float32)
        self.camera = np.zeros(4, np.float32)

    def step(self, action):
        self.reward = self.reward + action
        self.camera += action  # <- second
        return {"reward": torch.tensor(self.reward), "image": {"camera": torch.from_numpy(self.camera)}}  # <- first


def buggy():
    worker = Worker()
    replay = [worker.step(action) for action in (1, 2)]
    return replay[1]["image"]["camera"] - replay[0]["image"]["camera"]


def fixed():
    worker = Worker()
    replay = []
    for action in (1, 2):
        observation = worker.step(action)
        replay.append({**observation, "image": {"camera": observation["image"]["camera"].clone()}})
        del observation
    return replay[1]["image"]["camera"] - replay[0]["image"]["camera"]
