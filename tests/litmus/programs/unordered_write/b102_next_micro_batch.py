"""The upload of the next micro-batch overtakes the graph that still reads this one's input."""

import torch

ENTRY = "B102"
KIND = "unordered-write"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    upload = torch.cuda.Stream()
    tokens = torch.zeros(16, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    drafts = []
    for micro in range(3):
        with torch.cuda.stream(upload):
            tokens.copy_(torch.full((16,), micro).pin_memory(), non_blocking=True)  # <- second
            uploaded = upload.record_event()
        torch.cuda.current_stream().wait_event(uploaded)
        drafts.append(tokens * 2)  # <- first
    torch.cuda.synchronize()
    return [draft.tolist() for draft in drafts]


def fixed():
    upload = torch.cuda.Stream()
    tokens = torch.zeros(16, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    drafts = []
    computed = torch.cuda.Event()
    for micro in range(3):
        upload.wait_event(computed)
        with torch.cuda.stream(upload):
            tokens.copy_(torch.full((16,), micro).pin_memory(), non_blocking=True)
            uploaded = upload.record_event()
        torch.cuda.current_stream().wait_event(uploaded)
        drafts.append(tokens * 2)
        computed.record()
    torch.cuda.synchronize()
    return [draft.tolist() for draft in drafts]
