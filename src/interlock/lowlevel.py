"""Public names for those who write devices, frameworks, sinks, sources, schedules or observers."""

from __future__ import annotations

from interlock._core._events import (
    Access,
    Alloc,
    AllocationId,
    Claim,
    Event,
    Frame,
    Free,
    Handoff,
    HostWait,
    Pattern,
    Record,
    Region,
    Site,
    Wait,
    observe,
)
from interlock._core._fence import Fence, HostTimeline, Timeline
from interlock._core._handover import (
    Carried,
    Leaf,
    Part,
    Placement,
    Receiver,
    StreamDevice,
    SupportsReceiver,
)
from interlock._core._lease import Lease, LeaseState, SlotIndex
from interlock._core._loan import Loan
from interlock._core._memory import HostMemory
from interlock._core._pool import SlotMemory, SlotPool
from interlock._core._protocols import (
    Device,
    DeviceArray,
    Export,
    Framework,
    ListedShard,
    Memory,
    Piece,
    Pieces,
    ShardContent,
    ShardWriter,
    Sink,
    Source,
    SupportsCatalog,
    SupportsChunks,
    SupportsDeviceArrays,
    SupportsIds,
    SupportsLimits,
    SupportsReadInto,
)
from interlock._core._queue import Operation, OperationQueue
from interlock._core._ring import Ring, RingStatistics
from interlock._core._rows import RaggedRows
from interlock._core._sites import here
from interlock._core._spans import Span
from interlock._core._tree import Structure, flatten
from interlock._waiting import Inbox, wait
from interlock.devices import HostDevice, Schedule, SimulatedDevice, open_device, parse_schedule
from interlock.frameworks import framework_named, framework_of, framework_running

__all__ = [
    "Access",
    "Alloc",
    "AllocationId",
    "Carried",
    "Claim",
    "Device",
    "DeviceArray",
    "Event",
    "Export",
    "Fence",
    "Frame",
    "Framework",
    "Free",
    "Handoff",
    "HostDevice",
    "HostMemory",
    "HostTimeline",
    "HostWait",
    "Inbox",
    "Leaf",
    "Lease",
    "LeaseState",
    "ListedShard",
    "Loan",
    "Memory",
    "Operation",
    "OperationQueue",
    "Part",
    "Pattern",
    "Piece",
    "Pieces",
    "Placement",
    "RaggedRows",
    "Receiver",
    "Record",
    "Region",
    "Ring",
    "RingStatistics",
    "Schedule",
    "ShardContent",
    "ShardWriter",
    "SimulatedDevice",
    "Sink",
    "Site",
    "SlotIndex",
    "SlotMemory",
    "SlotPool",
    "Source",
    "Span",
    "StreamDevice",
    "Structure",
    "SupportsCatalog",
    "SupportsChunks",
    "SupportsDeviceArrays",
    "SupportsIds",
    "SupportsLimits",
    "SupportsReadInto",
    "SupportsReceiver",
    "Timeline",
    "Wait",
    "flatten",
    "framework_named",
    "framework_of",
    "framework_running",
    "here",
    "observe",
    "open_device",
    "parse_schedule",
    "wait",
]
