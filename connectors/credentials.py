"""Credentials that an address carries: taken out before it is kept or shown, put back when it is opened."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from connectors.errors import SourceError

_LOGIN = re.compile(r"(?<=://)(?P<value>[^/?#\s]+)(?=@)")
# An option of an address, or one of the words that ATTACH takes: a signature, a key, a password. Not `key=1/`, a partition's folder.
_NAMED = re.compile(
    r"(?<![\w/-])(?P<name>[\w-]*(?:passw|pwd|token|secret|sig|credential|key|auth|sas)[\w-]*)(?P<equals>\s*=\s*)(?P<value>'[^']*'|[^\s;&'#]+)",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"^(?!file:)[A-Za-z][A-Za-z0-9+.-]*:", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"\$\{([\w-]+)\}")


def masked(text: str) -> str:
    """The text safe for a message: each credential in its addresses becomes ``***``."""
    return _NAMED.sub(lambda found: found["name"] + "=" + _mask(found["value"]), _LOGIN.sub(lambda found: _mask(found["value"]), text))


def extract_credentials(uri: str, reserved: Collection[str] = ()) -> tuple[str, dict[str, str]]:
    """The address with a placeholder ``${NAME}`` for each credential, and the credentials by name. No name is in ``reserved``.

    ``user:password`` is one credential. A user alone is not one, except over HTTP, where services take a token there. Placeholders that are
    there already stay: they name secrets of the server's configuration.
    """
    values: dict[str, str] = {}
    if _ADDRESS.match(uri) is None:
        return uri, values

    def keep(name: str, value: str) -> str:
        free = next(one for one in (name, *(f"{name}_{number}" for number in range(2, 10_000))) if one not in {*values, *reserved})
        values[free] = value
        return f"${{{free}}}"

    def login(found: re.Match[str]) -> str:
        value = found["value"]
        is_user = ":" not in value and not uri.lower().startswith("http")
        return value if is_user or _is_placeholder(value) else keep("login", value)

    def named(found: re.Match[str]) -> str:
        value = found["value"]
        return found[0] if _is_placeholder(value) else found["name"] + found["equals"] + keep(found["name"].lower(), value)

    return _NAMED.sub(named, _LOGIN.sub(login, uri)), values


def placeholders(uri: str) -> list[str]:
    """Names of the secrets that an address has placeholders for; a path has none."""
    return _PLACEHOLDER.findall(uri) if _ADDRESS.match(uri) else []


def fill_in(uri: str, values: Mapping[str, str]) -> str:
    """The address with its placeholders filled in. Raises `SourceError` for a name without a value."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in values:
            raise SourceError(
                f"{masked(uri)} wants the secret {found[1]}, which is not there; name it under secrets in the server's config"
            )
        return values[found[1]]

    return _PLACEHOLDER.sub(value, uri)


def without_login(uri: str) -> str:
    """The address without user and password."""
    return _LOGIN.sub("", uri).replace("://@", "://")


def _is_placeholder(value: str) -> bool:
    """Whether the value, or the password after a user's name, is a placeholder."""
    return _PLACEHOLDER.fullmatch(value.strip("'").rpartition(":")[2]) is not None


def _mask(value: str) -> str:
    return value if _is_placeholder(value) else "***"
