"""``python -m bench.harness.servers.scripted_server``: `harvester serve` with `bench.harness.servers.scripted_replica` in place of vLLM."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harvester.config import ServeConfig, parse_config
from harvester.errors import HarvesterError
from harvester.serve import server

if TYPE_CHECKING:
    from ray import serve

    from harvester.engine.launch.models import ModelChoice


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--harvest", type=json.loads, default={}, help="section `harvest` of the config, as JSON")
    parser.add_argument("--delay", type=float, default=0.0, metavar="SECONDS", help="that each completion takes")
    parser.add_argument("--config", type=json.loads, default={}, help="further keys of the config, as JSON")
    given = parser.parse_args()

    def chat_app(config: ServeConfig, choice: ModelChoice, state: Path, ledger: str) -> serve.Application:
        from bench.harness.servers.scripted_replica import scripted_app  # after the environment that Ray reads has been set

        return scripted_app(config, choice, state, ledger, given.delay)

    try:
        config = parse_config({"port": given.port, "harvest": given.harvest, **given.config}, "command line")
        server.run(config, given.state, lambda kind, fields: print(json.dumps({"event": kind, **fields}), flush=True), chat_app)
    except HarvesterError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
