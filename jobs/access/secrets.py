"""Credentials of a job's source: in a file of the job's own folder that its user alone may read, apart from all that is shown."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from connectors.credentials import extract_credentials, fill_in, masked, placeholders, without_login
from connectors.errors import SourceError, StorageError
from jobs.config import SecretConfig
from jobs.storage.folder import SECRETS

_STORED: TypeAdapter[dict[str, str | SecretConfig]] = TypeAdapter(dict[str, str | SecretConfig])


def kept_apart(uri: str, named: Mapping[str, SecretConfig]) -> tuple[str, dict[str, str | SecretConfig]]:
    """The address with ``${NAME}`` in place of each credential, safe to keep and show; and the credentials by NAME.

    For a placeholder that was in the address already, a secret of the configuration, the value is the `SecretConfig` that says where it is.

    Raises `SourceError` for a name that the configuration does not hold, or not for this address.
    """
    wanted = placeholders(uri)
    shown, found = extract_credentials(uri, reserved=wanted)
    return shown, {**found, **{name: _named(uri, name, named) for name in wanted}}


def write_secrets(folder: Path, secrets: Mapping[str, str | SecretConfig]) -> None:
    """Write the credentials into ``folder``, which is created. Raises `StorageError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / SECRETS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(handle, "wb") as file:  # noqa: PTH123  # of a handle
            file.write(_STORED.dump_json(dict(secrets)))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(f"cannot write {folder / SECRETS}: {error.strerror}; free space there") from error


def opened(uri: str, folder: Path) -> str:
    """The address with its credentials filled in from ``folder``. Raises `SourceError` where one is missing."""
    if not placeholders(uri):
        return uri
    try:
        stored = _STORED.validate_json((folder / SECRETS).read_bytes())
    except (OSError, ValidationError) as error:
        raise SourceError(f"the credentials of {masked(uri)} cannot be read from {folder / SECRETS}; submit the source again") from error
    return fill_in(uri, {name: looked_up(name, secret) for name, secret in stored.items()})


def looked_up(name: str, secret: str | SecretConfig) -> str:
    """Raises `SourceError` for a named secret that is not where the configuration says."""
    if isinstance(secret, str):
        return secret
    if secret.env is not None:
        value = os.environ.get(secret.env)
        if value is None:
            raise SourceError(f"secret {name}: environment variable {secret.env} is not set; set it where the server is started")
        return value
    try:
        path = Path(os.path.expanduser(str(secret.file)))  # noqa: PTH111 - the home of an unknown user stays as it is written
        return path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"secret {name}: cannot read file {secret.file}; check that the server's user may read it") from error


def _named(uri: str, name: str, named: Mapping[str, SecretConfig]) -> SecretConfig:
    secret = named.get(name)
    plain = without_login(uri)
    if secret is None:
        raise SourceError(f"{masked(uri)[:200]} wants the secret {name}, which the server's config does not name under secrets")
    after = plain[len(secret.prefix) :][:1]
    if not plain.startswith(secret.prefix) or not (after in "/?;: " or secret.prefix.endswith(("/", ":"))):
        raise SourceError(f"secret {name} is not for {masked(uri)[:200]}; its prefix in the server's config says which addresses it is for")
    return secret
