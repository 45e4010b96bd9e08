"""Two streams multiply with one cached workspace."""

import torch

ENTRY = "B109"
KIND = "unordered-write"
SCHEDULES = "lazy, eager, starve, pct"


class Gemm:
    def __init__(self, *, shared):
        self.shared = shared
        self.workspace = torch.zeros(16, 16, device="cuda")

    def scratch(self):
        return self.workspace if self.shared else torch.zeros(16, 16, device="cuda")


def buggy():
    gemm = Gemm(shared=True)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    a = torch.ones(16, 16, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(streams[0]):
        left = gemm.scratch().addmm_(a, a, beta=0)  # <- first
    with torch.cuda.stream(streams[1]):
        right = gemm.scratch().addmm_(a, a, beta=0, alpha=3)  # <- second
    torch.cuda.synchronize()
    return left.sum().item(), right.sum().item()


def fixed():
    gemm = Gemm(shared=False)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    a = torch.ones(16, 16, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(streams[0]):
        left = gemm.scratch().addmm_(a, a, beta=0)
    with torch.cuda.stream(streams[1]):
        right = gemm.scratch().addmm_(a, a, beta=0, alpha=3)
    torch.cuda.synchronize()
    return left.sum().item(), right.sum().item()
