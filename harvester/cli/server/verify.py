"""`harvester verify`: check tokens, ended steps, step times and KV copies on this machine."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from harvester.cli.invocation import Invocation, command
from harvester.cli.server.serve import require_engine
from harvester.config import ServeConfig, load_config
from harvester.engine.launch.models import choose_model
from harvester.engine.vllm import surface
from harvester.errors import HarvesterError
from jobs.storage.folder import StateFolder

WORDS = {True: "ok", False: "wrong", None: "unknown"}

app = typer.Typer()


@command(app)
def verify(
    here: Invocation,
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="MODEL", help="Hugging Face id, folder, or name of one of the config's models.")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="YAML file; options here win over it.")] = None,
) -> None:
    """Check tokens, ended steps, times and KV copies on this machine.

    Runs three engines one after the other: stock vLLM, harvester with steps ended early and KV taken away, and harvester as configured.
    Takes two or three minutes a model and the memory of a server, so stop the server first. Without --model, all models of the config are
    verified; without both, the embedded one.
    Later servers use the result: they turn off what is wrong, and turn on KV checkpoints if they are right. Exits with 1 if a part
    is wrong, or if none could be judged.

    \b
    Example:
        harvester verify --model Qwen/Qwen3-8B
    """
    asked = _asked(config, model)
    require_engine("vllm")
    surface.require()
    whole = importlib.import_module("harvester.engine.verify.whole")
    failures = []
    for name, values in asked.items():
        try:
            fault = _verify(here, whole, name, values)
        except HarvesterError as error:
            if len(asked) == 1:
                raise
            fault = error.message
        if fault is not None:
            failures.append(f"{f'model {name}: ' if name else ''}{fault}")
    if failures:
        raise HarvesterError("; ".join(failures))


def _verify(here: Invocation, whole: ModuleType, name: str | None, values: ServeConfig) -> str | None:
    """Verify one model and print what is found. Returns what is wrong. Raises `HarvesterError` if it cannot be verified."""
    log = _log(here, name)
    with _own_environment():
        found = whole.verify(whole.subject_of(values), log, lambda line: print(line, file=sys.stderr, flush=True), here.state_dir)
    if here.json:
        here.print_json(found)
    else:
        print(*_lines(found), sep="\n")
    if found["ok"]:
        return None
    wrong = [part["part"] for part in found["parts"] if part["ok"] is False]
    told = f"wrong on this machine: {', '.join(wrong)}" if wrong else "nothing could be told on this machine"
    return f"{told}; the engines' log is {log}"


def _asked(path: Path | None, model: str | None) -> dict[str | None, ServeConfig]:
    """What is verified, by name; None: the first model, or one that the configuration does not have. Raises `ConfigError`."""
    values = load_config(path)
    if model in values.models:
        return {model: values.of(model)}
    if model is not None:
        first = choose_model(values.model, values.served_model_name, elsewhere=True).name  # whether or not it is there
        return {None: values if model == first else load_config(path, {"model": model})}
    return {None: values, **{name: values.of(name) for name in values.models}}


@contextmanager
def _own_environment() -> Iterator[None]:
    """Take back the variables of a model's ``env``, which its engines inherit."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _log(here: Invocation, name: str | None) -> Path:
    """The log file in the state folder, which is prepared as for a server. Raises `StorageError` if the folder cannot be used."""
    folder = StateFolder(here.state_dir)
    folder.prepare()
    return folder.logs / ("verify.log" if name is None else f"verify-{name}.log")


def _lines(found: dict[str, Any]) -> list[str]:
    parts = found["parts"]
    width = max(len(part["part"]) for part in parts)
    lines = [f"{WORDS[part['ok']]:<8} {part['part']:<{width}}  {part['said']}" for part in parts]
    return [*lines, f"{found['seconds']:.0f} s with model {found['model']}"]
