#!/bin/sh
# Runs every figure on this machine's GPU, some ten minutes, and writes tables and numbers to benchmarks/results/ and the
# picture to docs/images/. A peer that is not installed is a row of its table that says so.
cd "$(dirname "$0")/../.." || exit
failed=
run() {
    printf '\n%s\n' "$*"
    "${PYTHON:-python3}" "benchmarks/gpu/$@" || failed="$failed $1"
}
for script in jax_feed torch_feed torch_drain jax_drain drain_storage stress exits; do
    run "$script.py" --save
done
run overlap.py
[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }
