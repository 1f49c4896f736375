#!/usr/bin/env bash
# Creates .venv-bench, the environment for the benchmarks in PyTorch: `PYTORCH=1 make bench` calls this. It is separate,
# because PyTorch needs newer packages than MXNet works with, and is larger than everything else together.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly BENCH_VENV=$ROOT/.venv-bench

need_environment
version=$("$VENV/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [[ $version == 3.9 ]]; then
    fail "PyTorch needs Python 3.10 or later, and .venv has $version: PYTHON=python3.11 make env"
fi
fingerprint=$(echo "$ROOT, $version" | cat - requirements-bench.txt constraints-bench.txt | sha256sum)
if [[ $(cat "$BENCH_VENV/installed" 2>/dev/null) != "$fingerprint" ]]; then
    say "installing PyTorch into .venv-bench"
    "$VENV/bin/python" -m venv --clear "$BENCH_VENV" || fail "'python -m venv $BENCH_VENV' failed: make room for it"
    logged bench "installing requirements-bench.txt" "$BENCH_VENV/bin/python" -m pip install \
        --constraint constraints-bench.txt --requirement requirements-bench.txt
    echo "$fingerprint" >"$BENCH_VENV/installed"
fi
