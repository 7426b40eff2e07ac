"""What the wall before an application checks with: keys, origins, quotas and limits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harvester.config import ServeConfig
from harvester.core import Role
from harvester.errors import ConfigError
from harvester.serve.access.body import BodyRoom, Pace
from harvester.serve.access.identity import Authenticator, Identity
from harvester.serve.access.keys import KeyRing
from harvester.serve.access.meter import Meter
from harvester.serve.access.origin import OriginCheck, is_loopback, known_hosts
from harvester.serve.access.quota import MAX_IN_WORK, Quotas
from harvester.serve.access.tokens import Several, Tokens

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

KEYLESS_ADMIN = Identity(None, frozenset({Role.ADMIN}))  # the caller on a server that asks for no key


@dataclass(frozen=True)
class Gate:
    """Made once in each process. ``keyless``: the caller on a server that asks for no key. ``has_keys``: whether anybody has one."""

    keys: Authenticator = field(default_factory=KeyRing)
    origin: OriginCheck = field(default_factory=OriginCheck)
    quotas: Quotas = field(default_factory=lambda: Quotas(time.monotonic))
    keyless: Identity = KEYLESS_ADMIN
    meter: Meter | None = None  # counts what the model is asked; None for an application without a model
    pace: Pace = field(default_factory=Pace)  # of bodies
    bodies: BodyRoom = field(default_factory=BodyRoom)  # that are being read
    slo_classes: frozenset[str] | None = None  # that a request may name; None: not checked
    media_hosts: frozenset[str] = frozenset()  # that images and the like of a request are fetched from
    tracer: Tracer | None = None  # of requests
    has_keys: Callable[[], bool] = lambda: True


def gate_of(config: ServeConfig, keys: Path, replicas: int | None = None, tracer: Tracer | None = None) -> Gate:
    """The gate of one process. ``keys``: the key file, which may come and change at any time.

    ``replicas``: how many replicas share a key's requests to the model; None: the gate is not before a model.
    """
    quotas = Quotas(time.monotonic, replicas or 1, MAX_IN_WORK if replicas is None else None)
    may_be_open = is_loopback(config.host) if config.access.no_keys is None else config.access.no_keys
    ring = KeyRing(config.api_keys, keys, config.access.limits, asks=not may_be_open)
    tokens = config.access.tokens
    return Gate(
        ring if tokens is None else Several([ring, Tokens(tokens, config.access.limits)]),
        OriginCheck(known_hosts(config.host, config.allowed_hosts), config.access.origins),
        quotas,
        Identity(None, KEYLESS_ADMIN.roles, config.access.limits),
        None if replicas is None else Meter(quotas),
        slo_classes=frozenset(config.slo.classes),
        media_hosts=frozenset(config.media_hosts),
        tracer=tracer,
        has_keys=ring.has_keys if tokens is None else lambda: True,
    )


def requiring_keys_if_any(config: ServeConfig, keys: Path) -> ServeConfig:
    """The configuration of all processes of a server. If there is a key when the server starts, each process requires one from then on.

    The configuration says so, because a process that starts later may not find the key file: it was lost, or its copy on another machine
    is out of date.
    """
    if not KeyRing(config.api_keys, keys).asks_for_key():
        return config
    return _with_keys_required(config)


def requiring_keys(config: ServeConfig, keys: Path) -> ServeConfig:
    """As `requiring_keys_if_any`, where the listener is configured elsewhere, as Serve's is by KubeRay: ``host`` says not who reaches it.

    Each asks for a key, even while there is none, unless ``no_keys`` is true. Raises `ConfigError` for an ingress, as `check_listening`.
    """
    _check_ingress(config)
    return _with_keys_required(config) if config.access.no_keys is None else requiring_keys_if_any(config, keys)


def _with_keys_required(config: ServeConfig) -> ServeConfig:
    return config.model_copy(update={"access": config.access.model_copy(update={"no_keys": False})})


def check_listening(config: ServeConfig, keys: Path) -> str | None:
    """Who may do everything because no key is asked for: ``this machine``, ``the network``, or None.

    Raises `ConfigError` for the network, unless ``no_keys`` is set, and for a loopback host whose replicas would listen on the network.
    """
    _check_ingress(config)
    if config.access.tokens is not None or KeyRing(config.api_keys, keys).asks_for_key():
        return None
    if is_loopback(config.host):
        return None if config.access.no_keys is False else "this machine"
    if not config.access.no_keys:
        raise ConfigError(
            f"without API keys everybody who reaches {config.host} could do everything; make a key with: harvester key add NAME, "
            "or say --no-keys"
        )
    return "the network"


def _check_ingress(config: ServeConfig) -> None:
    if config.address is not None and config.ingress == "haproxy" and is_loopback(config.host):
        raise ConfigError(
            f"host {config.host} with ingress haproxy: the replicas of a joined cluster listen on the network then; "
            "give a host that others reach, or ingress: proxy"
        )
