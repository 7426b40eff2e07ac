#!/usr/bin/env bash
# Write a bill of materials (CycloneDX) of each lock file to build/, then ask for known vulnerabilities of what it pins.
#
#   tools/audit.sh [PYTHON]
#
# The tools live in an environment of their own: what they need is not what harvester is tested with. Known vulnerabilities are asked for at
# the Python Package Index; a package that it does not know fails the audit, so that nothing is passed over.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${1:-python3}
venv=.cache/audit
if ! cmp --silent requirements/audit.txt "$venv/installed.txt"; then
    rm -rf "$venv"
    "$python" -m venv "$venv"
    "$venv/bin/pip" install --quiet --requirement requirements/audit.txt
    cp requirements/audit.txt "$venv/installed.txt"
fi

mkdir -p build
found=0
for device in cpu cuda; do
    "$venv/bin/cyclonedx-py" requirements "requirements/$device.lock" --pyproject pyproject.toml --mc-type application \
        --output-reproducible --short-PURLs --output-file "build/sbom-$device.json"
    echo "build/sbom-$device.json: $(grep -c '"purl"' "build/sbom-$device.json") packages"
done
for device in cpu cuda; do
    "$venv/bin/pip-audit" --requirement "requirements/$device.lock" --disable-pip --no-deps --strict --progress-spinner off || found=1
done
exit "$found"
