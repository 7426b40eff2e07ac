"""Put Triton into a folder of its own, for the tests that run vLLM's Model Runner V2 on a CPU; prints the folder.

    .venv/bin/python tools/triton.py

In `.venv` vLLM would find it in every test. The release and its hashes are those of requirements/cuda.lock. What only a GPU needs is left
out: assembler, headers, profiler.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "cuda.lock"
GPU_ONLY = re.compile(r"triton/(backends/\w+/(bin|lib|include)/|profiler/|_C/libproton)")


def locked() -> str:
    """The lock's lines about Triton. Raises `SystemExit` where it has none."""
    found = re.search(r"^triton==\S+ \\\n(?:    --hash=\S+(?: \\)?\n)+", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise SystemExit(f"triton: {LOCK.name} pins no triton; make lock")
    return found.group()


def fetch(wanted: str, folder: Path) -> None:
    """Download and unpack what ``wanted`` pins. Raises `SystemExit` with pip's own words."""
    with tempfile.TemporaryDirectory() as work:
        requirement = Path(work, "triton.txt")
        requirement.write_text(wanted, encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "-d", work, "-r", str(requirement)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"triton: pip failed with exit code {done.returncode}:\n{done.stderr[-2000:]}")
        draft = Path(work, "site")
        with zipfile.ZipFile(next(Path(work).glob("*.whl"))) as wheel:
            wheel.extractall(draft, [name for name in wheel.namelist() if not GPU_ONLY.match(name)])
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(exist_ok=True)
        shutil.move(draft, folder)


def main() -> int:
    wanted = locked()
    version = wanted.split()[0].partition("==")[2]
    folder = ROOT / ".cache" / f"triton-{version}"
    if not (folder / "triton" / "__init__.py").exists():
        sys.stderr.write(f"triton: fetching {version} for the tests of Model Runner V2 (190 MB)\n")
        fetch(wanted, folder)
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
