"""How a table's own library reaches its storage: it knows nothing of Arrow's file system, and so is told what the address says."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote

from connectors.errors import SourceError
from connectors.paths.location import Location, split_options

_TAKEN = ("region", "endpoint_override", "scheme")
_IGNORED = ("allow_bucket_creation", "allow_bucket_deletion", "allow_delayed_open", "smart_defaults")  # for writers, or Arrow's own client
_VARIABLES = {"s3": "SSL_CERT_FILE", "gs": "GOOGLE_APPLICATION_CREDENTIALS", "abfs": "AZURE_STORAGE_ACCOUNT_KEY"}


@dataclass(frozen=True, slots=True)
class Storage:
    """``address``: a path, or an address without login and options. None: the library finds it in the environment."""

    address: str
    access_key: str | None = None
    secret_key: str | None = None
    region: str | None = None
    endpoint: str | None = None  # with http:// or https://

    def for_object_store(self) -> dict[str, str] | None:
        """As the Rust crate ``object_store`` names it, which Delta and Lance are read by."""
        told = {
            "aws_access_key_id": self.access_key,
            "aws_secret_access_key": self.secret_key,
            "aws_region": self.region,
            "aws_endpoint": self.endpoint,
            "aws_allow_http": "true" if self.endpoint is not None and self.endpoint.startswith("http:") else None,
        }
        return {name: value for name, value in told.items() if value is not None} or None


def storage_of(location: Location, what: str) -> Storage:
    """Raises `SourceError` for what no library of a table format reads, or would be told nothing of; ``what``: the kind of table."""
    if location.local is not None:
        return Storage(location.path)
    if location.is_web:
        raise SourceError(f"{location.label} is {what}, which is not read by http; give the address of its bucket, or a copy on a disk")
    bare, options = split_options(location.uri)
    scheme, _, rest = bare.partition("://")
    login, at, _ = rest.partition("/")[0].rpartition("@")
    asked, is_s3 = dict(parse_qsl(options)), scheme.lower() == "s3"
    unknown = [name for name in asked if not is_s3 or name not in (*_TAKEN, *_IGNORED)]
    if unknown or (":" in login and not is_s3):
        raise SourceError(
            f"{location.label} is {what}, whose library takes no {unknown[0] if unknown else 'login'} from an address; set it in the "
            f"environment of the server, such as {_VARIABLES.get(scheme.lower(), 'that of its storage')}"
        )
    if not is_s3:
        return Storage(bare)
    user, _, password = login.partition(":")
    endpoint = asked.get("endpoint_override")
    return Storage(
        f"s3://{location.path}",
        access_key=unquote(user) if at else None,
        secret_key=unquote(password) if at else None,
        region=asked.get("region"),
        endpoint=endpoint if endpoint is None or "://" in endpoint else f"{asked.get('scheme', 'https')}://{endpoint}",
    )
