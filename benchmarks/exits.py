"""Exits with live arrays and pending work: run N child processes a program and count how they end.

    python benchmarks/exits.py            # 100 exits each
    python benchmarks/exits.py --count 5

Each child queues more work than it waits for, over memory that Interlock lent, and ends with the arrays alive. A clean
end is exit code 0 with nothing on stderr.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

LOAN = '''
"""JAX arrays over lent memory, with computations queued on them, at module level and in a cycle."""
import jax, jax.numpy as jnp, numpy as np
from interlock.lowlevel import HostMemory, Inbox, Loan, framework_named

@jax.jit
def step(weights, batch):
    for _ in range(4):
        weights = weights @ batch * 1e-3
    return weights

framework, inbox, ends = framework_named("jax"), Inbox(), []

def batch():
    loan = Loan(HostMemory.allocate(1 << 20, "host", on_device=False))
    ends.append(loan.on_end(inbox.post))
    return framework.lend(np.asarray(loan).view("float32").reshape(512, 512))

weights, kept = jnp.ones((512, 512)), []
kept.append(kept)
for number in range(12):
    weights = step(weights, batch())
    if number % 3 == 0:
        kept.append(batch())
'''

FEED = '''
"""Two feeds left half-way, one of them by a live iterator, with their batches in queued computations."""
import jax, jax.numpy as jnp, numpy as np
import interlock

@jax.jit
def step(weights, batch):
    for _ in range(4):
        weights = weights @ batch * 1e-3
    return weights

data = np.ones((64 * 64, 256), "float32")
weights, kept = jnp.ones((256, 256)), []
feed = interlock.Feed(data, batch_size=256, to="jax", workers=2)
for number, batch in enumerate(feed):
    weights = step(weights, batch)
    kept.append(batch)
    if number == 5:
        break
second = interlock.Feed(data, batch_size=256, to="jax", workers=2)
iterator = iter(second)
for _ in range(3):
    weights = step(weights, next(iterator))
'''

PROGRAMS = {"arrays over a loan": LOAN, "feeds left half-way": FEED}


def run(program: str) -> tuple[int, str]:
    """Run one child; return its exit code and what it said on stderr."""
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    return child.returncode, child.stderr


def main() -> int:
    """Print a table; return 0 if every exit was clean."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=100, help="exits a program (default 100)")
    parser.add_argument("--jobs", type=int, default=2, help="children at a time (default 2)")
    options = parser.parse_args()
    print(f"{'program':<24}{'exit code':>10}{'times':>8}{'with stderr':>13}")
    clean = True
    for name, program in PROGRAMS.items():
        with ThreadPoolExecutor(options.jobs) as pool:
            ends = list(pool.map(run, [program] * options.count))
        noisy = Counter(code for code, stderr in ends if stderr)
        for code, times in sorted(Counter(code for code, _ in ends).items()):
            print(f"{name:<24}{code:>10}{times:>8}{noisy[code]:>13}")
            clean = clean and code == 0 and not noisy[code]
        said = next((stderr for _, stderr in ends if stderr), "")
        if said:
            print(said, file=sys.stderr)
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
