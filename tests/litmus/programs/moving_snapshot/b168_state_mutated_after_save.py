"""The state is changed right after an asynchronous save returned, before the writer has staged it.

pytorch/torchtitan#930: does the call block until it is staged?
"""

from __future__ import annotations

import io
import threading

import torch

ENTRY = "B168"
KIND = "moving-snapshot"
SCHEDULES = "lazy"


class Checkpointer:
    def __init__(self):
        self.file, self.staged = io.BytesIO(), threading.Event()

    def save(self, state):
        self.thread = threading.Thread(target=self._write, args=(state,))
        self.thread.start()  # <- first

    def _write(self, state):
        copied = {name: tensor.clone() for name, tensor in state.items()}
        self.staged.set()
        torch.save(copied, self.file)


def run(*, wait):
    state, checkpointer = {"step": torch.zeros(2)}, Checkpointer()
    checkpointer.save(state)
    if wait:
        checkpointer.thread.join()
    state["step"].add_(1)  # <- second
    checkpointer.thread.join()
    return checkpointer.file.getvalue()


def buggy():
    return run(wait=False)


def fixed():
    return run(wait=True)
