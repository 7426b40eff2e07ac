"""vLLM's own application with every route that it has, without an engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args

from fastapi import FastAPI
from starlette.routing import Mount, Route, WebSocketRoute

# Each adds routes that a server may have: for control of the engine, for adapters, for profiles.
SWITCHES = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_TORCH_PROFILER_DIR": "profiles"}


def stock_app(**arguments: Any) -> FastAPI:
    """As `harvester.engine.vllm.frontend.serving.chat_app` builds it, for every kind of model."""
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.tasks import SupportedTask
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    args = make_arg_parser(FlexibleArgumentParser()).parse_args([])
    for name, value in arguments.items():
        setattr(args, name, value)
    with switched_on():
        return build_app(args, tuple(_names(SupportedTask)))


def _names(kind: Any) -> Iterator[Any]:
    for one in get_args(kind):
        if isinstance(one, str):
            yield one
        else:
            yield from _names(one)


@contextmanager
def switched_on() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in SWITCHES}
    os.environ.update(SWITCHES)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def routes_of(app: FastAPI) -> list[str]:
    """Every route as ``"METHOD /path"``; HEAD is GET."""
    found = set()
    for route in app.routes:
        if isinstance(route, WebSocketRoute) or type(route).__name__ == "APIWebSocketRoute":
            found.add(f"WEBSOCKET {route.path}")  # type: ignore[attr-defined]
        elif isinstance(route, Mount):
            found.add(f"GET {route.path}")
        else:
            assert isinstance(route, Route), route
            found |= {f"{method} {route.path}" for method in route.methods or () if method != "HEAD"}
    return sorted(found)
