"""``python -m tests.serve.redeploy STATE CONFIG DELAY_S``, in the environment of a server's raylet: deploys its chat application anew."""

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
from harvester.serve.processes import mark_of, marked


def main(state: Path, config_json: str, delay_s: float) -> None:
    mark = mark_of(state)
    words = next(process.cmdline() for process in marked(mark) if "--gcs-address" in " ".join(process.cmdline()))
    address = next(word.partition("=")[2] for word in words if word.startswith("--gcs-address="))
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False)
    config = parse_config(json.loads(config_json), "test")
    choice = choose_model(None, None)
    app = scripted_app(config, choice, state, f"ledger-{mark}", delay_s)
    serve.run(app, name=CHAT_APP, route_prefix="/")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
    os._exit(0)  # Ray's driver would take its leave of the server
