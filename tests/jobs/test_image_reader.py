"""Where images of rows are read: the folder of the source, the rules of who asked, and what a file is by its first bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.paths.rules import SourceRules
from jobs.access.images import ImageBounds, ImageReader, media_type, source_folder
from jobs.engine import RowError

PNG = b"\x89PNG\r\n\x1a\n and the rest"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "data"
    place.mkdir()
    return place


@pytest.mark.parametrize("path", ["../secret.png", "link.png", "/etc/hostname", ".hidden.png", "[x].png"])
def test_a_client_reads_no_image_outside_the_roots(path: str, folder: Path) -> None:
    secret = folder.parent / "secret.png"
    for place in (secret, folder / ".hidden.png"):
        place.write_bytes(PNG)
    for name in ("link.png", "[x].png"):
        (folder / name).symlink_to(secret)
    rules = SourceRules(roots=(str(folder),))
    reader = ImageReader(str(folder / "table.parquet"), rules, ImageBounds())
    with pytest.raises(RowError) as refused:
        reader.address("photo", path)
    assert refused.value.code == "bad_image"
    assert "No such file" not in refused.value.message


def test_what_a_client_may_not_read_is_not_told_apart_from_what_is_not_there(folder: Path) -> None:
    (folder.parent / "secret.png").write_bytes(PNG)
    reader = ImageReader(str(folder / "table.parquet"), SourceRules(roots=(str(folder),)), ImageBounds())
    said = []
    for name in ("secret.png", "nothing.png"):
        with pytest.raises(RowError) as refused:
            reader.address("photo", str(folder.parent / name))
        said.append(refused.value.message.replace(name, "X"))
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("/data/photos/table.csv", "/data/photos"),
        ("/data/*/table.csv", "/data"),
        ("file:///data/table.csv", "/data"),
        ("duckdb:/data/shop.duckdb", "/data"),
        ("/data/shop.duckdb:docs", "/data"),
        ("s3://bucket/table.parquet", None),
        ("https://example.org/table.csv", None),
        ("postgres:host=db", None),
    ],
)
def test_a_relative_path_begins_at_the_folder_of_the_source(uri: str, found: str | None) -> None:
    assert source_folder(uri) == found


def test_the_folder_of_a_folder_is_itself(folder: Path) -> None:
    assert source_folder(str(folder)) == str(folder)


def test_a_relative_path_without_a_folder_is_the_error_of_its_row() -> None:
    with pytest.raises(RowError, match="relative path"):
        ImageReader("s3://bucket/table.parquet", None, ImageBounds()).address("photo", "cat.png")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"BM..", "image/bmp"),
        (b"II*\x00", "image/tiff"),
    ],
)
def test_an_image_is_known_by_its_first_bytes(content: bytes, kind: str) -> None:
    assert media_type(content) == kind
