"""Libraries that only some tables need: imported when one is opened, named where they are missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from connectors.errors import SourceError


def extra(module: str, name: str, what: str) -> ModuleType:
    """The library. Raises `SourceError` that names the extra which installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SourceError(
            f"{what} needs a library that is not installed here; add the extra [{name}]: pip install {_PACKAGES[name]}"
        ) from error


_PACKAGES = {
    "delta": "'deltalake>=1.6,<2'",
    "iceberg": "'pyiceberg[pyarrow]>=0.12,<0.13'",
    "lance": "'pylance>=14,<15'",
    "excel": "'python-calamine>=0.9,<0.10'",
}
