"""Columns are freed on the pool's stream, which is idle, while a query still reads them on its own."""

import torch

ENTRY = "B127"
KIND = "freed-in-flight"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    pool = [torch.cuda.Stream() for _ in range(2)]
    query = torch.cuda.Stream()
    columns = []
    for number, stream in enumerate(pool):
        with torch.cuda.stream(stream):
            columns.append(torch.full((600,), number + 1.0, device="cuda"))
        query.wait_stream(stream)
    with torch.cuda.stream(query):
        revenue = torch.dot(columns[0], columns[1])  # <- first
    columns.clear()  # <- second
    torch.cuda.synchronize()
    return revenue.item()


def fixed():
    pool = [torch.cuda.Stream() for _ in range(2)]
    query = torch.cuda.Stream()
    columns = []
    for number, stream in enumerate(pool):
        with torch.cuda.stream(stream):
            columns.append(torch.full((600,), number + 1.0, device="cuda"))
        query.wait_stream(stream)
    with torch.cuda.stream(query):
        revenue = torch.dot(columns[0], columns[1])
        read = query.record_event()
    for stream in pool:
        stream.wait_event(read)
    columns.clear()
    torch.cuda.synchronize()
    return revenue.item()
