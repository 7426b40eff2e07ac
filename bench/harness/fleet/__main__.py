"""``python -m bench.harness.fleet [MACHINES] [FOLDER...]``: a Ray cluster of machines made of namespaces, until Ctrl-C. Needs root.

``FOLDER``: below /tmp, seen by all machines.
"""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Event

from bench.harness.fleet.machines import Fleet, why_not


def main(words: list[str]) -> int:
    reason = why_not()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 1
    with Fleet(int(words[0]) if words else 3, shared=[Path(word) for word in words[1:]]) as fleet:
        for machine in fleet.machines:
            print(f"{machine.name} {machine.address}: {' '.join(machine.command('bash'))}")
        print(f"Ray: {fleet.address}, RAY_AUTH_MODE=disabled; Ctrl-C ends it", flush=True)
        try:
            Event().wait()
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
