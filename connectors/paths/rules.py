"""What may be read for a client that is not the user this program runs as."""

from __future__ import annotations

import fnmatch
import ipaddress
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from connectors.credentials import masked, without_login
from connectors.errors import SourceError
from connectors.processes.pickled import across_versions

_WEB = ("http", "https")
_NEVER = (Path("/proc"), Path("/sys"), Path("/dev"))
_GLOB = re.compile(r"[*?\[]")
_OPTIONS = re.compile(r"\?.*$")
_SAFE_OPTIONS = re.compile(r"^\?region=[\w-]+$")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@across_versions
@dataclass(frozen=True, slots=True)
class SourceRules:
    """``roots``: folders whose regular files may be read, except names that begin with a dot; links are resolved first.

    ``denied``: folders within them that may not be read. ``hosts``: what may be reached. Entries are host names (``*.example.com``) or IP
    addresses for http and https, prefixes of other addresses (``s3://bucket``), whole addresses of databases, or a kind of database with a
    colon at the end (``postgres:``). None: http and https at public addresses.
    """

    roots: tuple[str, ...] = ()
    hosts: tuple[str, ...] | None = None
    denied: tuple[str, ...] = ()

    def check_path(self, path: str) -> None:
        """Raise `SourceError` unless the part of ``path`` before any glob lies in a root. Does not tell whether it exists."""
        parts = Path(path).parts
        if ".." in parts:
            raise SourceError(f"{path} goes up with ..; name the folder itself")
        literal = Path(*parts[: next((number for number, part in enumerate(parts) if _GLOB.search(part)), len(parts))])
        self._check_place(literal, path)

    def check_file(self, path: str) -> None:
        """Raise `SourceError` unless the file that ``path`` leads to lies in a root and is a regular file."""
        self._check_place(Path(path), path)
        try:
            is_regular = stat.S_ISREG(Path(path).stat().st_mode)
        except OSError as error:
            raise SourceError(f"cannot read {path}: {error.strerror}; give the path of a file") from error
        if not is_regular:
            raise SourceError(f"{path} is no regular file; give the path of one")

    def check_address(self, uri: str) -> None:
        """Raise `SourceError` for an address with ``://`` that may not be reached. `permits` checks what a host name resolves to."""
        scheme, _, rest = uri.partition("://")
        if "::" in uri and scheme.lower() in _WEB and "[" not in rest.partition("/")[0]:
            raise SourceError(f"{masked(uri)[:200]} chains two addresses with ::; name the file itself")
        is_allowed = self._is_host(host_of(uri)) if scheme.lower() in _WEB else self._has_beginning(uri)
        if not is_allowed:
            raise self._refusal(uri)

    def check_database(self, uri: str) -> None:
        """Raise `SourceError` unless the database's kind or whole address is listed: its later words may name another host."""
        kind = uri.partition(":")[0].lower() + ":"
        if not any(entry.lower() == kind or entry == without_login(uri) for entry in self.hosts or ()):
            raise self._refusal(uri)

    def permits(self, host: str, address: Address) -> bool:
        """Whether to connect to ``address`` for ``host``. Loopback, link-local and other special addresses must be listed one by one."""
        plain = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped else address
        named = {entry.lower() for entry in self.hosts or ()}
        if str(plain) in named or (plain.is_loopback and "localhost" in named and host.lower() == "localhost"):
            return True
        if plain.is_loopback or plain.is_link_local or plain.is_multicast or plain.is_unspecified or plain.is_reserved:
            return False
        return plain.is_global if self.hosts is None else self._is_host(host)

    def _is_host(self, host: str) -> bool:
        return self.hosts is None or any(fnmatch.fnmatchcase(host.lower(), entry.lower()) for entry in self.hosts)

    def _has_beginning(self, uri: str) -> bool:
        options = _OPTIONS.search(uri)
        plain = without_login(_OPTIONS.sub("", uri))
        if (options is not None and not _SAFE_OPTIONS.match(options[0])) or ".." in plain.split("/"):
            return False
        entries = [entry.rstrip("/") for entry in self.hosts or () if "://" in entry]
        return any(plain == entry or plain.startswith(f"{entry}/") for entry in entries)

    def _check_place(self, literal: Path, path: str) -> None:
        try:
            real = literal.resolve()
        except (OSError, RuntimeError) as error:  # a link to itself
            raise self._refusal(path) from error
        inner = [real.relative_to(root) for root in map(Path.resolve, map(Path, self.roots)) if real.is_relative_to(root)]
        if not any(all(not part.startswith(".") for part in one.parts) for one in inner):
            raise self._refusal(path)
        if any(real.is_relative_to(folder) for folder in (*_NEVER, *(Path(folder).resolve() for folder in self.denied))):
            raise self._refusal(path)

    def _refusal(self, what: str) -> SourceError:
        key = "hosts" if ":" in what and not what.startswith("/") else "roots"
        return SourceError(
            f"{masked(what)[:200]} is nothing that this server reads for its clients; list it under sources.{key} in the server's config, "
            "or submit as the server's own user on its machine"
        )


def host_of(uri: str) -> str:
    """The host of an address; ``""`` where it has none that can be read."""
    try:
        return urlsplit(uri).hostname or ""
    except ValueError:
        return ""
