"""Tokens of an identity provider (OpenID Connect): JWTs signed by one of the keys that it publishes."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import jwt

from harvester.access_config import TokenConfig
from harvester.core import Role
from harvester.serve.access.identity import Authenticator, Identity
from jobs.access.limits import Limits

log = logging.getLogger("harvester.access")

PREFIX = "jwt:"  # of the owner's name, so that it is never the name of a key
FETCH_S = 10.0
FRESH_S = 300.0  # after this, keys are fetched again
AGAIN_S = 10.0  # least time between two fetches, however many tokens of unknown keys arrive
MAX_NAME = 200  # characters of an owner's name
HASH_CHARS = 32  # of its end, where the whole would be longer
_UNNAMEABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # control characters, and halves of surrogate pairs
LEEWAY_S = 30.0

Fetch = Callable[[], dict[str, Any]]


def fetch_of(source: str) -> Fetch:
    """Reads a JWK set from a URL or a file."""
    if source.startswith(("http://", "https://")):
        return lambda: dict(httpx.get(source, timeout=FETCH_S, follow_redirects=False).raise_for_status().json())
    return lambda: dict(json.loads(Path(source).read_text(encoding="utf-8")))


class Tokens:
    """An `Authenticator`. The provider's keys are fetched by a thread, so that no request waits for them."""

    def __init__(self, config: TokenConfig, limits: Limits, fetch: Fetch | None = None) -> None:
        self._config = config
        self._limits = limits
        self._fetch = fetch or fetch_of(config.jwks)
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._wanted = threading.Event()
        self.refresh()
        threading.Thread(target=self._keep_fresh, name="token-keys", daemon=True).start()

    def asks_for_key(self) -> bool:
        return True

    def identify(self, bearer: str) -> Identity | None:
        try:
            key = self._keys.get(jwt.get_unverified_header(bearer).get("kid"))
            if key is None:
                self._wanted.set()
                return None
            claims = jwt.decode(
                bearer,
                key,
                algorithms=list(self._config.algorithms),
                audience=self._config.audience,
                issuer=self._config.issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", self._config.name_claim]},
            )
        except jwt.PyJWTError:
            return None
        name, roles = claims[self._config.name_claim], self._roles(claims)
        if not isinstance(name, str) or not name or not roles:
            return None
        if _UNNAMEABLE.search(name):
            log.warning("token_name_refused claim=%s name=%s", self._config.name_claim, ascii(name)[:MAX_NAME])
            return None
        return Identity(_owner(name), roles, self._limits)

    def _roles(self, claims: dict[str, Any]) -> frozenset[Role]:
        """Roles in the claim, a list or a string of words as in `scope`. Unknown ones are another application's."""
        given = claims.get(self._config.roles_claim, [])
        words = given.split() if isinstance(given, str) else given if isinstance(given, list) else []
        return frozenset(role for role in Role if role in words)

    def refresh(self) -> None:
        """Fetch the provider's keys. If that fails, the known ones stay."""
        try:
            found = jwt.PyJWKSet.from_dict(self._fetch())
        except (httpx.HTTPError, OSError, ValueError, TypeError, jwt.PyJWTError) as error:
            log.error("token_keys_unreadable source=%s %s", self._config.jwks, " ".join(str(error).split())[:200])
            return
        self._keys = {key.key_id: key for key in found.keys}

    def _keep_fresh(self) -> None:
        while True:
            self._wanted.wait(FRESH_S)
            self._wanted.clear()
            try:
                self.refresh()
            except Exception:  # without this thread no token is accepted once the provider has other keys
                log.exception("token_keys_bug")
            time.sleep(AGAIN_S)


def _owner(name: str) -> str:
    """Two names never give one owner: one of `MAX_NAME` characters ends in a hash, a shorter one is the name itself."""
    owner = f"{PREFIX}{name}"
    if len(owner) < MAX_NAME:
        return owner
    return owner[: MAX_NAME - HASH_CHARS] + hashlib.sha256(name.encode()).hexdigest()[:HASH_CHARS]


class Several:
    """Asks several authenticators: the first that knows a bearer token says whose it is."""

    def __init__(self, authenticators: Sequence[Authenticator]) -> None:
        self._authenticators = authenticators

    def asks_for_key(self) -> bool:
        return any(one.asks_for_key() for one in self._authenticators)

    def identify(self, bearer: str) -> Identity | None:
        return next((found for one in self._authenticators if (found := one.identify(bearer)) is not None), None)
