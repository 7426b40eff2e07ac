"""Where everything but replicas runs in a joined cluster, and in which environment: its nodes know nothing of us."""

from __future__ import annotations

from typing import Any

import ray

from harvester.config import ServeConfig
from harvester.serve.environment import joined_variables

_HEAD = "node:__internal_head__"
_NODE_ID = "ray.io/node-id"


def head_node() -> str | None:
    """Node id of the cluster's head; None if no live node is marked as the head."""
    return next((str(node["NodeID"]) for node in ray.nodes() if node["Alive"] and _HEAD in node["Resources"]), None)


def ledger_options(config: ServeConfig) -> dict[str, Any]:
    """Options of the ledger's actor: on the head, wherever its tables are.

    On another machine that lost its power, the ledger would not answer until Ray notices, which takes up to a minute.
    """
    return {} if config.address is None else application_options(config)


def application_options(config: ServeConfig) -> dict[str, Any]:
    """Options of an application's actors: on the head, elsewhere only once the head has gone."""
    head = head_node() if config.address is not None else None
    if head is None:
        return {"num_cpus": 0}
    return {
        "num_cpus": 0,
        "runtime_env": environment(config),
        "label_selector": {_NODE_ID: head},
        "fallback_strategy": [{"label_selector": {}}],
    }


def environment(config: ServeConfig, more: dict[str, str] | None = None) -> dict[str, Any]:
    """Ray's ``runtime_env``. Nodes that we started ourselves have our variables already."""
    return {"env_vars": (joined_variables(config) if config.address is not None else {}) | (more or {})}
