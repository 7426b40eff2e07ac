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
resolve() {
    local device=$1 python_version=$2 file=$3
    shift 3
    "$work/venv/bin/uv" pip compile --quiet "$device.in" dev.in --output-file "$file" --python-version "$python_version" --generate-hashes \
        --no-header --no-annotate --no-emit-index-url --no-emit-find-links --system-certs "$@"
}

report() {
    echo "requirements/$1.lock: $(grep -c '==' "$1.lock") packages, for Python $2"
}

resolve cpu 3.11 cpu.lock --override overrides.txt ${PIP_FIND_LINKS:+--find-links "$PIP_FIND_LINKS"}
report cpu 3.11

# For machines whose indexes have no CPU build: the general one of the same release, and the libraries that it cannot be loaded without.
resolve_general() {
    echo "$(grep -m1 '^torch==' cpu.lock | sed 's/+cpu.*//')" > "$work/torch.in"
    "$work/venv/bin/uv" pip compile --quiet "$work/torch.in" --output-file "$work/torch.lock" --python-version 3.11 --generate-hashes \
        --no-header --no-annotate --no-emit-index-url --system-certs --python-platform x86_64-manylinux_2_31 --only-binary :all:
    awk '/^[^ ]/ { kept = /^(torch|nvidia-[^=]*)==/ } kept' "$work/torch.lock" > torch-general.lock
}
resolve_general

# Without the folder above: a CPU wheel must not stand in for the CUDA one. Wheels alone: a GPU machine has no compilers for the rest.
# glibc 2.31 (Debian 11, Ubuntu 20.04) is the oldest for which every package has one.
wheels=(--python-platform x86_64-manylinux_2_31 --only-binary :all:)
resolve cuda 3.11 cuda.lock "${wheels[@]}"
# What is resolved for Python 3.11 must be the answer for 3.12 too, so that one lock does for both.
cp cuda.lock "$work/cuda-3.12.lock"
resolve cuda 3.12 "$work/cuda-3.12.lock" "${wheels[@]}"
if ! diff <(grep '==' cuda.lock) <(grep '==' "$work/cuda-3.12.lock"); then
    echo "lock: Python 3.12 needs other releases than 3.11 (above); bound them in requirements/cuda.in" >&2
    exit 1
fi
report cuda "3.11 and 3.12"
