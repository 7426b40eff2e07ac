"""``python -m tests.fleet.redeploy ADDRESS STATE CONFIG DELAY_S``: deploys the chat application of a joined cluster anew."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import ray
from ray import serve

from bench.harness.servers.scripted_replica import scripted_app
from harvester.config import parse_config
from harvester.engine.launch.models import choose_model
from harvester.serve.deployments.scale.replicas import CHAT_APP
from harvester.serve.machine.node import NAMESPACE
from harvester.serve.processes import mark_of


def main(address: str, state: Path, config_json: str, delay_s: float) -> None:
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False)
    config = parse_config({"address": address, **json.loads(config_json)}, "test")
    app = scripted_app(config, choose_model(None, None), state, f"ledger-{mark_of(state)}", delay_s)
    serve.run(app, name=CHAT_APP, route_prefix="/")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], float(sys.argv[4]))
    os._exit(0)  # Ray's driver would take its leave of the server
