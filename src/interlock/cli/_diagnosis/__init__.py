"""What `interlock doctor` finds out about a machine: facts, measurements, and a verdict. Nothing here prints.

What may hang, crash or take a device's memory (drivers, frameworks, a storage) runs in a process of its own.
"""

from __future__ import annotations
