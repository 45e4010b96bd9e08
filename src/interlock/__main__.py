"""`python -m interlock`."""

from __future__ import annotations

import sys

from interlock.cli import main

if __name__ == "__main__":
    sys.exit(main())
