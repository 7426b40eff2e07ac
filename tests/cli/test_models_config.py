"""A configuration with several models: what each one's replicas are told, and what is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from harvester.config import ServeConfig, load_config, parse_config
from harvester.engine.launch.models import settled
from harvester.errors import ConfigError

BIG = {"model": "org/big", "slo": {"ttft_slo_ms": 500, "tpot_slo_ms": 100}, "port": 9001, "env": {"VLLM_API_KEY": "k"}}


def test_a_further_model_has_its_own_keys_and_the_server_s() -> None:
    config = parse_config({**BIG, "models": {"small": {"model": "org/small", "replicas": 3, "engine": {"max_num_seqs": 4}}}}, "test")
    small = config.of("small")
    assert (small.model, small.served_model_name, small.replicas.max, small.engine) == ("org/small", "small", 3, {"max_num_seqs": 4})
    assert (small.slo.ttft_slo_ms, small.models) == (None, {})
    assert (small.port, small.api_keys) == (9001, ("k",)), "who may not ask the first may not ask the others"
    assert small.harvest == config.harvest


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a path": ({"models": {"a/b": {}}}, "test: models.a/b.[key]: String should match pattern"),
    "the first": ({"served_model_name": "x", "models": {"x": {}}}, "models: x is the name of another model or adapter; give it another"),
    "an adapter": ({"adapters": {"x": "org/x"}, "models": {"x": {}}}, "models: x is the name of another model or adapter; give it another"),
    "a key of its own": ({"models": {"x": {"engine": {"api_key": "k"}}}}, "models.x has an API key of its own; keys are the server's"),
    "the server's": ({"models": {"x": {"port": 9}}}, "test: unknown key models.x.port"),
}


@pytest.mark.parametrize(("given", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_in_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as refused:
        parse_config(given, "test")
    assert "\n" not in refused.value.message


def test_a_key_that_a_file_gives_twice_is_refused_with_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("share:\n  reserved_slots: 1\nport: 9\nslo:\n  ttft_slo_ms: 1\n  tpot_slo_ms: 2\n  ttft_slo_ms: 3\n")
    with pytest.raises(ConfigError, match=rf"^config file {path}: key ttft_slo_ms is given twice, in lines 5 and 7; keep one$"):
        load_config(path)
    path.write_text("replicas: {min: 1, min: 2}")
    with pytest.raises(ConfigError, match=r"key min is given twice, in lines 1 and 1; keep one$"):
        load_config(path)
    path.write_text("models:\n  a: &a {replicas: 2}\n  b: {<<: *a, replicas: 3}\n")
    assert load_config(path).models["b"].replicas.max == 3, "a merged key may be given again"


def floats(kind: type[BaseModel], place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Keys of the configuration that take a number with a fraction."""
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from floats(field.annotation, (*place, name))
        elif field.annotation is float or float in get_args(field.annotation):
            yield (*place, name)


FLOATS = sorted(floats(ServeConfig))
WITHOUT_END = {("share", "reserve_s"), ("slo", "ttft_slo_ms"), ("slo", "tpot_slo_ms")}  # infinite: always kept, not promised


@pytest.mark.parametrize("text", [".inf", ".nan"])
@pytest.mark.parametrize("place", FLOATS, ids=".".join)
def test_a_number_without_end_is_refused_where_it_has_no_meaning(place: tuple[str, ...], text: str, tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("{" + "".join(f"{key}: {{" for key in place[:-1]) + f"{place[-1]}: {text}" + "}" * len(place))
    if place in WITHOUT_END and text == ".inf":
        load_config(path)
        return
    with pytest.raises(ConfigError, match=rf"{'.'.join(place)}: Input should be .* \(given (inf|nan)\)$"):
        load_config(path)


@pytest.mark.parametrize("key", ["prompt_per_million", "output_per_million", "per_gpu_hour"])
def test_a_price_is_a_finite_number(key: str) -> None:
    prices = {"prompt_per_million": 1.0, "output_per_million": 1.0, key: math.inf}
    with pytest.raises(ConfigError, match=rf"^test: price\.{key}: Input should be a finite number \(given inf\)$"):
        parse_config({"price": prices}, "test")


def test_models_are_looked_at_before_anything_starts(tmp_path: Path) -> None:
    config = parse_config({"models": {"small": {"model": str(tmp_path / "gone")}}}, "test")
    with pytest.raises(ConfigError, match=r"model folder .*gone does not exist"):
        settled(config, "big")
    with pytest.raises(ConfigError, match="models: small is the name of the first model"):
        settled(config, "small")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"price": {"promt_per_million": 1}}, "test: unknown key price.promt_per_million; did you mean prompt_per_million?"),
        ({"slo": {"classes": {"voice": {"ttft_m": 5}}}}, "test: unknown key slo.classes.voice.ttft_m; did you mean ttft_slo_ms?"),
        ({"lease_s": 5}, "test: unknown key lease_s; did you mean harvest.lease_s?"),
        ({"replicas": "two"}, "test: replicas: give a number, or a range such as {min: 1, max: 4} (given 'two')"),
        ({"slo": "fast"}, "test: slo: give a section of keys and values (given 'fast')"),
    ],
    ids=str,
)
def test_a_mistake_is_told_with_the_keys_of_its_own_section(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(given, "test")
    assert refused.value.message == told
