"""The whole verification: three engines one after the other, each in a process of its own; under three minutes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from harvester.config import ServeConfig
from harvester.engine.launch.models import choose_model
from harvester.engine.launch.profiles import profile_path
from harvester.engine.processes.in_subprocess import run_in_process
from harvester.engine.shared.state import SharedState
from harvester.engine.verify import kept
from harvester.engine.verify.answers import Pressed, Stock
from harvester.engine.verify.ask import in_time
from harvester.engine.verify.signals import Signals, signals
from harvester.engine.verify.subject import Subject
from harvester.engine.verify.ties import Compared, compare
from harvester.engine.verify.times import Times, times
from harvester.engine.verify.tokens import pressed_tokens, stock_tokens
from harvester.engine.verify.verdict import Aspect, Verdict, detect_ms, kv_verdict, signals_verdict, times_verdict, tokens_verdict
from harvester.engine.vllm.launch import engine
from harvester.engine.vllm.platform import on_cpu
from harvester.errors import ConfigError, EngineError, EngineStartError

SIGNALS, SIGNALS_S = 100, 20.0
LEARN_S, STRETCH_S = 10.0, 6.0

T = TypeVar("T")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Timed:
    """Measurements of one engine with the deployment's own arguments. ``kv``: by rank, whether blocks came back whole."""

    kv: list[bool]
    times: Times
    signals: Signals


def subject_of(config: ServeConfig) -> Subject:
    """The deployment of ``config`` on this machine. Raises `ConfigError` for a model that is not there."""
    choice = choose_model(config.model, config.served_model_name)
    cpu = on_cpu() if config.device == "auto" else config.device == "cpu"
    os.environ.update(config.env)
    return Subject(config, choice.path, choice.embedded, cpu, name=choice.name)


def verify(subject: Subject, log: Path, say: Say, state: Path | None = None) -> dict[str, Any]:
    """Run the verification. Returns JSON values: ``ok``, figures by name, and a line for each part. An engine that dies fails its part, and
    one that does not start leaves it undecided.

    ``say`` is told what is done now; ``log`` gets what the engines print. The verdicts are kept in ``state`` for later servers.
    """
    began_s = time.monotonic()
    log.write_bytes(b"")
    say("stock vLLM answers")
    stock = _try(log, stock_tokens, subject)
    say("harvester answers, with steps that end early and KV that is taken away")
    pressed = _try(log, pressed_tokens, subject, stock.request_blocks, stock.longest_tokens) if isinstance(stock, Stock) else stock
    say("harvester is timed: steps, signals, copies")
    timed = _try(log, measure, subject)
    verdicts = [*_of_tokens(stock, pressed), *_of_timed(timed, pressed if isinstance(pressed, Pressed) else None)]
    if state is not None:
        kept.write(profile_path(state, subject.name, subject.model, subject.config), verdicts)
    return {
        "ok": all(one.ok is not False for one in verdicts) and any(one.ok for one in verdicts),
        "tokens_identical": next(one.ok for one in verdicts if one.part is Aspect.TOKENS),
        **_figures(timed),
        "parts": [one.as_json() for one in verdicts],
        "tokens": _token_figures(stock, pressed),
        "model": subject.model,
        "seconds": round(time.monotonic() - began_s, 1),
    }


def measure(subject: Subject) -> Timed:
    """Run by `run_in_process`."""
    return asyncio.run(_measure(subject))


async def _measure(subject: Subject) -> Timed:
    shared = SharedState.make()
    async with engine(subject.timed(shared.path), shared) as llm, in_time():
        kv = [bool(rank) for rank in await llm.on_workers("kv_comes_back")]
        found = await times(llm, shared, LEARN_S, STRETCH_S)
        return Timed(kv, found, await signals(llm, shared, SIGNALS, SIGNALS_S))


def compared(stock: Stock, pressed: Pressed) -> list[Compared]:
    """The comparison with stock's answers, turn by turn."""
    return [compare(zip(turn, stock.tokens, strict=True), stock.tops, stock.tie) for turn in pressed.turns]


def _try(log: Path, work: Callable[..., T], *given: Any) -> T | Exception:
    """The result of ``work``, or its error: when one part fails, the others still run."""
    try:
        return run_in_process(work, *given, log=log)
    except ConfigError as error:
        return EngineStartError(str(error))
    except Exception as error:  # vLLM's own, of any kind
        return error if isinstance(error, EngineError) else EngineError(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")


def _of_tokens(stock: Stock | Exception, pressed: Pressed | Exception) -> list[Verdict]:
    if isinstance(stock, Exception):
        return [Verdict(Aspect.TOKENS, None, f"stock vLLM gave no answers: {stock}")]
    if isinstance(pressed, Exception):
        return [Verdict(Aspect.TOKENS, _failed(pressed), f"no answers: {pressed}")]
    return [tokens_verdict(compared(stock, pressed), stock.tie, pressed)]


def _failed(error: Exception) -> bool | None:
    """The verdict on what an engine did not do: wrong if it was running, undecided if it did not start."""
    return None if isinstance(error, EngineStartError) else False


def _of_timed(timed: Timed | Exception, pressed: Pressed | None) -> list[Verdict]:
    if isinstance(timed, Exception):
        return [Verdict(part, _failed(timed), f"not measured: {timed}") for part in (Aspect.SIGNALS, Aspect.TIMES, Aspect.KV)]
    return [signals_verdict(timed.signals), times_verdict(timed.times), kv_verdict(timed.kv, pressed)]


def _figures(timed: Timed | Exception) -> dict[str, Any]:
    if isinstance(timed, Exception):
        return dict.fromkeys(("ended_of_asked", "detect_ms", "step_error", "kv_identical"))
    found = timed.signals
    return {
        "ended_of_asked": round(found.ended / found.asked, 4) if found.asked else None,
        "asked": found.asked,
        "ended": found.ended,
        "detect_ms": detect_ms(found),
        "step_error": {name: value if value is None else round(value, 4) for name, value in asdict(timed.times).items()},
        "kv_identical": all(timed.kv),
    }


def _token_figures(stock: Stock | Exception, pressed: Pressed | Exception) -> dict[str, Any] | None:
    if isinstance(stock, Exception) or isinstance(pressed, Exception):
        return None
    turns = compared(stock, pressed)
    return {
        "answers": sum(one.answers for one in turns),
        "different": sum(one.different for one in turns),
        "tied": sum(one.tied for one in turns),
        "compared_share": round(sum(one.compared for one in turns) / max(1, sum(one.tokens for one in turns)), 4),
        "tie": stock.tie,
        "ended_steps": pressed.ended_steps,
        "preempted": pressed.preempted,
        "loaded_blocks": pressed.loaded_blocks,
        "distinct_tokens": len({token for answer in stock.tokens for token in answer}),
    }
