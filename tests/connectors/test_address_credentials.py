"""Credentials of addresses: found wherever they stand, kept apart, put back as they were."""

from __future__ import annotations

import pytest

from connectors.credentials import extract_credentials, fill_in, masked, placeholders, without_login
from connectors.errors import SourceError


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("http://bob:hunter2@host/x.parquet", "http://${login}@host/x.parquet"),
        ("https://ghp_token@host/x.parquet", "https://${login}@host/x.parquet"),
        ("postgres://bob:hunter2@host/shop", "postgres://${login}@host/shop"),
        ("postgres://bob:hun@ter2@host/shop", "postgres://${login}@host/shop"),
        ("https://h/x.csv?X-Amz-Signature=ab&a=1&token=t", "https://h/x.csv?X-Amz-Signature=${x-amz-signature}&a=1&token=${token}"),
        ("https://h/x?key=1&key=2", "https://h/x?key=${key}&key=${key_2}"),
        ("https://h/x?sig=a%2Fb%3D#top", "https://h/x?sig=${sig}#top"),
        ("s3://AK:SK@bucket/x?secret_key=abc&region=eu", "s3://${login}@bucket/x?secret_key=${secret_key}&region=eu"),
        ("postgres:dbname=shop password=hunter2 host=h", "postgres:dbname=shop password=${password} host=h"),
        ("postgres:password='two words' host=h", "postgres:password=${password} host=h"),
        ("odbc:DSN=x;UID=bob;PWD=hunter2", "odbc:DSN=x;UID=bob;PWD=${pwd}"),
        ("md:shop?motherduck_token=abc", "md:shop?motherduck_token=${motherduck_token}"),
    ],
)
def test_a_credential_is_taken_out_and_put_back(uri: str, shown: str) -> None:
    found, values = extract_credentials(uri)
    assert found == shown
    assert fill_in(found, values) == uri
    assert all(value not in found and value not in masked(f"cannot read {uri}: no") for value in values.values() if len(value) > 1)
    assert extract_credentials(found) == (found, {})


@pytest.mark.parametrize(
    "uri",
    [
        "/data/key=12/docs.parquet",
        "/data/${x}/token=a.parquet",
        "file:///data?token=a",
        "docs.parquet",
        "s3://bucket/key=1/x.parquet",
        "abfs://container@account.dfs.core.windows.net/x",
        "sftp://bob@host/x.csv",
        "postgres:dbname=shop",
        "postgres://bob:${shop}@host/shop",
        "https://h/x?token=${shop}",
    ],
)
def test_what_is_none_stays(uri: str) -> None:
    assert extract_credentials(uri) == (uri, {})


def test_a_name_that_is_there_already_is_not_given_again() -> None:
    assert extract_credentials("https://bob:a@h/x?token=${login}", reserved=["login"]) == (
        "https://${login_2}@h/x?token=${login}",
        {"login_2": "bob:a"},
    )


def test_places_are_those_of_addresses() -> None:
    assert placeholders("postgres://${a}@h/${b}") == ["a", "b"]
    assert placeholders("/data/${a}") == []
    with pytest.raises(SourceError, match="wants the secret b, which is not there"):
        fill_in("postgres://${a}@h/${b}", {"a": "1"})


def test_an_address_without_its_user() -> None:
    assert without_login("postgres://bob:${shop}@host/shop") == "postgres://host/shop"
    assert without_login("/data/a@b") == "/data/a@b"
