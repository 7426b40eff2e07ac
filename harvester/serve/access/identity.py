"""Who asks: a name, what it may do, and how much."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from harvester.core import Role
from jobs.access.limits import Limits

NO_OWN = Limits()  # the defaults of a server


@dataclass(frozen=True, slots=True)
class Identity:
    """``name`` owns the jobs, files and batches that it makes. ``limits``: what it may ask. ``digest``: of a key that shares its name."""

    name: str | None
    roles: frozenset[Role]
    limits: Limits = NO_OWN
    digest: str | None = field(default=None, repr=False)

    @property
    def counted_as(self) -> str | None:
        """The name under which its requests, bodies and pages are counted and bounded: one for each key."""
        return self.name if self.digest is None else f"{self.name} {self.digest}"

    @property
    def is_admin(self) -> bool:
        return Role.ADMIN in self.roles

    @property
    def folder(self) -> str:
        """Name of the folders that hold what it sent and asked for: what a client sends is never part of a path."""
        return hashlib.sha256((self.name or "").encode()).hexdigest()[:16]

    def has_one_of(self, needed: Collection[Role]) -> bool:
        return bool(needed) and (self.is_admin or not self.roles.isdisjoint(needed))

    def owns(self, owner: str | None) -> bool:
        """Whether it may see a job, file or batch of ``owner``. Without keys on the server, those have no owner."""
        return self.is_admin or (owner is not None and owner == self.name)


class Authenticator(Protocol):
    """Finds the identity of a bearer token. Other sources of identities (JWT, say) implement it beside `KeyRing`."""

    def asks_for_key(self) -> bool:
        """Whether requests need a token now. False: everybody is the administrator."""
        ...

    def identify(self, bearer: str) -> Identity | None:
        """Called for each request, on the event loop: it does not block. None: unknown, expired or revoked."""
        ...
