"""Configuration sections on access: service tiers of chat, API keys, limits, identity providers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harvester.core import Role, ServiceTier
from jobs.access.limits import Limits
from jobs.config import Section


class TierConfig(Section):
    """Tier of a chat request without `service_tier`, or with `auto`."""

    default: ServiceTier = Field(
        default=ServiceTier.DEFAULT, description="Tier of requests without an API key, or with one that `keys` does not have."
    )
    keys: dict[str, ServiceTier] = Field(default_factory=dict, description="Tier by API key, or by the name of one.")


class TokenConfig(Section):
    """Accepts an identity provider's JWTs (OpenID Connect) as keys. `name_claim` names the owner of jobs, `roles_claim` lists our roles."""

    issuer: str = Field(min_length=1, description="Issuer that each token must name.")
    audience: str = Field(min_length=1, description="Audience that each token must name: this server, as the provider knows it.")
    jwks: str = Field(min_length=1, description="URL or file of the provider's public keys (a JWK set).")
    algorithms: tuple[Literal["RS256", "RS512", "PS256", "ES256", "ES384", "EdDSA"], ...] = ("RS256", "ES256")
    name_claim: str = Field(default="sub", description="Claim that names who asks.")
    roles_claim: str = Field(default="roles", description="Claim with a list of roles, or with words as in `scope`.")


class AccessConfig(Section):
    """Who may ask for what. Keys are made with `harvester key add`."""

    no_keys: bool | None = Field(
        default=None,
        description="true: listen beyond loopback although no key is asked for: everybody there may do everything. false: ask for a key "
        "on loopback too, even while there is none. None: ask beyond loopback, and on loopback once there is a key.",
    )
    limits: Limits = Field(
        default=Limits(), description="Limits of each key that has none of its own, and of everybody where there are no keys."
    )
    tokens: TokenConfig | None = Field(default=None, description="Take tokens of an identity provider beside keys.")
    origins: tuple[str, ...] = Field(
        default=(), description="Origins (https://app.example) whose pages may call this server; else only its own page may."
    )
    routes: dict[str, Role] = Field(
        default_factory=dict, description="Further routes by the role that may use them: {'POST /generative_scoring': chat}."
    )
