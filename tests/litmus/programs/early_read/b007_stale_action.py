"""A simulator on the CPU steps with an action that is still being copied.

pytorch/rl PR 2034: two rollouts from the same seed differ.
"""

from __future__ import annotations

import numpy as np
import torch

ENTRY = "B007"
KIND = "early-read"
SCHEDULES = "lazy, starve"


class Pendulum:
    def __init__(self):
        self.state = np.zeros(2, np.float32)

    def step(self, action):
        force = np.clip(action.numpy(), -1, 1)  # <- second
        self.state = (0.9 * self.state + force).astype(np.float32)
        return torch.from_numpy(self.state)


def rollout(*, wait):
    policy, environment = torch.nn.Linear(2, 2).cuda(), Pendulum()
    observation = torch.zeros(2)
    with torch.no_grad():
        for _ in range(3):
            action = policy(observation.cuda()).to("cpu", non_blocking=True)  # <- first
            if wait:
                torch.cuda.synchronize()
            observation = environment.step(action)
    return observation


def buggy():
    return rollout(wait=False)


def fixed():
    return rollout(wait=True)
