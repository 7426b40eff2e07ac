"""JWTs of an identity provider: signed by its keys, for this server, in time, and with roles of ours."""

from __future__ import annotations

import base64
import hmac
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import ValidationError

from harvester.access_config import TokenConfig
from harvester.config import ServeConfig
from harvester.core import Role
from harvester.serve.access import tokens as tokens_module
from harvester.serve.access.gate import check_listening, gate_of
from harvester.serve.access.tokens import MAX_NAME, Tokens
from jobs.access.limits import Limits

ISSUER, AUDIENCE = "https://id.example", "harvester"
FAR_S = 10_000.0  # a test takes less


def published(keys: dict[str, EllipticCurvePrivateKey]) -> dict[str, Any]:
    made = [json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())) | {"kid": name} for name, key in keys.items()]
    return {"keys": made}


@pytest.fixture(scope="module")
def key() -> EllipticCurvePrivateKey:
    return generate_private_key(SECP256R1())


@pytest.fixture
def config(tmp_path: Path, key: EllipticCurvePrivateKey) -> TokenConfig:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps(published({"one": key})))
    return TokenConfig(issuer=ISSUER, audience=AUDIENCE, jwks=str(path))


@pytest.fixture
def sign(key: EllipticCurvePrivateKey) -> Callable[..., str]:
    def made(by: Any = key, kid: str = "one", algorithm: str = "ES256", **claims: Any) -> str:
        usual = {"iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + FAR_S, "sub": "ann", "roles": ["chat", "elsewhere"]}
        given = {name: value for name, value in (usual | claims).items() if value is not None}
        return jwt.encode(given, by, algorithm=algorithm, headers={"kid": kid})

    return made


def test_a_token_says_who_asks_and_what_they_may(config: TokenConfig, sign: Callable[..., str]) -> None:
    found = Tokens(config, Limits(max_choices=3)).identify(sign())
    assert found is not None
    assert (found.name, found.roles, found.limits.max_choices) == ("jwt:ann", {Role.CHAT}, 3)


def test_roles_may_come_as_words(config: TokenConfig, sign: Callable[..., str]) -> None:
    other = config.model_copy(update={"roles_claim": "scope", "name_claim": "email"})
    found = Tokens(other, Limits()).identify(sign(scope="openid batch metrics", email="ann@example.com"))
    assert found is not None
    assert (found.name, found.roles) == ("jwt:ann@example.com", {Role.BATCH, Role.METRICS})


def test_two_names_are_never_one_owner(config: TokenConfig, sign: Callable[..., str]) -> None:
    tokens = Tokens(config, Limits())

    def owner(name: str) -> str:
        found = tokens.identify(sign(sub=name))
        assert found is not None
        assert found.name is not None
        return found.name

    fits = "a" * (MAX_NAME - len("jwt:") - 1)
    long = [fits + end for end in ("b", "c", "bb" * 100, "bb" * 100 + "c")]
    owners = [owner(name) for name in (fits, *long)]
    owners.append(owner(owners[1].removeprefix("jwt:")))
    assert len(set(owners)) == 6
    assert [len(one) for one in owners] == [MAX_NAME - 1, *[MAX_NAME] * 5]
    assert owners[0] == f"jwt:{fits}"


@pytest.mark.parametrize("name", ["ann\n2026 key=boss", "a\x1b[2J", "\x7f", "\x85"], ids=ascii)
def test_a_name_that_could_forge_a_line_of_a_log_or_a_terminal_is_nobodys(
    config: TokenConfig, sign: Callable[..., str], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert Tokens(config, Limits()).identify(sign(sub=name)) is None
    assert [record.getMessage() for record in caplog.records] == [f"token_name_refused claim=sub name={name!a}"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"exp": 1000.0},
        {"exp": None},
        {"iss": "https://evil.example"},
        {"aud": "another"},
        {"aud": None},
        {"sub": None},
        {"sub": ""},
        {"roles": []},
        {"roles": {"chat": True}},
        {"nbf": 99_999_999_999},
        {"kid": "two"},
        {"by": generate_private_key(SECP256R1())},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_any_other_token_is_nobodys(config: TokenConfig, sign: Callable[..., str], wrong: dict[str, Any]) -> None:
    assert Tokens(config, Limits()).identify(sign(**wrong)) is None


def test_a_token_signed_with_the_public_key_as_a_secret_is_nobodys(
    config: TokenConfig, sign: Callable[..., str], key: EllipticCurvePrivateKey
) -> None:
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    head, body, _ = sign().split(".")
    for algorithm, secret in (("HS256", public), ("none", None)):
        forged = f"{_encoded({'alg': algorithm, 'kid': 'one', 'typ': 'JWT'})}.{body}"
        signature = "" if secret is None else _text(hmac.digest(secret, forged.encode(), "sha256"))
        assert Tokens(config, Limits()).identify(f"{forged}.{signature}") is None
    assert Tokens(config, Limits()).identify(f"{head}.{body}.") is None
    with pytest.raises(ValidationError, match=r"algorithms\.0"):
        TokenConfig(issuer=ISSUER, audience=AUDIENCE, jwks=config.jwks, algorithms=("HS256",))  # type: ignore[arg-type]


def _encoded(value: dict[str, str]) -> str:
    return _text(json.dumps(value).encode())


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.mark.parametrize("text", ["", "hk_key", "a.b.c", "." * 50, "é.é.é"])
def test_what_is_no_token_is_nobodys(config: TokenConfig, text: str) -> None:
    assert Tokens(config, Limits()).identify(text) is None


def test_keys_that_the_provider_changes_are_followed_and_kept_while_it_is_away(
    config: TokenConfig, sign: Callable[..., str], key: EllipticCurvePrivateKey
) -> None:
    new = generate_private_key(SECP256R1())
    told: list[dict[str, Any]] = [published({"one": key})]

    def fetch() -> dict[str, Any]:
        if not told:
            raise OSError("the provider does not answer")
        return told[0]

    tokens = Tokens(config, Limits(), fetch)
    told.clear()
    tokens.refresh()
    assert tokens.identify(sign()) is not None
    told.append(published({"two": new}))
    tokens.refresh()
    assert tokens.identify(sign()) is None
    assert tokens.identify(sign(by=new, kid="two")) is not None


def test_a_server_takes_keys_and_tokens(tmp_path: Path, config: TokenConfig, sign: Callable[..., str]) -> None:
    served = ServeConfig.model_validate(
        {"host": "0.0.0.0", "engine": {"api_key": "one"}, "access": {"tokens": config.model_dump(mode="json")}}
    )
    assert check_listening(served, tmp_path / "keys.json") is None
    gate = gate_of(served, tmp_path / "keys.json")
    assert gate.keys.asks_for_key()
    names = [None if found is None else found.name for found in map(gate.keys.identify, ("one", sign(), "two"))]
    assert names == ["config", "jwt:ann", None]


def test_keys_are_fetched_from_the_providers_address(config: TokenConfig, sign: Callable[..., str]) -> None:
    told = Path(config.jwks).read_bytes()

    class Provider(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(told)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the test's output is its own."""

    with HTTPServer(("127.0.0.1", 0), Provider) as provider:
        threading.Thread(target=provider.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        there = config.model_copy(update={"jwks": f"http://127.0.0.1:{provider.server_address[1]}/jwks"})
        assert Tokens(there, Limits()).identify(sign()) is not None
        provider.shutdown()


def test_keys_are_fetched_again_after_an_error_of_any_kind(
    config: TokenConfig, key: EllipticCurvePrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_module, "FRESH_S", 0.01)
    monkeypatch.setattr(tokens_module, "AGAIN_S", 0.01)
    fetches, went_on = list[int](), threading.Event()

    def fetch() -> dict[str, Any]:
        fetches.append(1)
        if len(fetches) == 2:
            raise RuntimeError("of another class than those of a provider that is away")
        if len(fetches) > 2:
            went_on.set()
        return published({"one": key})

    Tokens(config, Limits(), fetch)
    assert went_on.wait(60)
