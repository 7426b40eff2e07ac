#!/usr/bin/env bash
# Write requirements/cpu.lock and requirements/cuda.lock: every package of the engine and of the tools, pinned and hashed, one lock a device.
#
#   PIP_FIND_LINKS=FOLDER tools/lock.sh [PYTHON]
#
# FOLDER holds PyTorch's CPU wheel, which general package indexes do not carry. The resolver lives in a throw-away environment.
set -euo pipefail
cd "$(dirname "$0")/../requirements"

python=${1:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet uv

# No header and no index lines: a lock file says what is installed, not on which machine it was resolved.
lock() {
    local device=$1
    shift
    "$work/venv/bin/uv" pip compile --quiet "$device.in" dev.in --output-file "$device.lock" --python-version 3.11 --generate-hashes \
        --no-header --no-annotate --no-emit-index-url --no-emit-find-links --system-certs "$@"
    echo "requirements/$device.lock: $(grep -c '==' "$device.lock") packages"
}

lock cpu --override overrides.txt ${PIP_FIND_LINKS:+--find-links "$PIP_FIND_LINKS"}
# Without the folder above: a CPU wheel must not stand in for the CUDA one.
lock cuda --python-platform x86_64-manylinux_2_28
