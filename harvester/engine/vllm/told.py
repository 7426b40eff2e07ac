"""One request as vLLM takes it and tells of it: what holds an answer, its errors as harvester's, and its answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from vllm.exceptions import GracefulHTTPError, VLLMClientError
from vllm.logprobs import Logprob
from vllm.outputs import RequestOutput
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from harvester.engine.frontend.engine import Generated, Top
from harvester.errors import BusyError, EngineError, UsageError
from jobs.usage import Usage


def guided_by(choices: Sequence[str] | None, json_schema: Mapping[str, Any] | None) -> StructuredOutputsParams | None:
    """What an answer is held to; None: to nothing."""
    if choices is not None:
        return StructuredOutputsParams(choice=list(choices))
    return None if json_schema is None else StructuredOutputsParams(json=dict(json_schema))


@contextmanager
def as_ours() -> Iterator[None]:
    """vLLM's errors of one request as harvester's. Most of them are no `ValueError`."""
    try:
        yield
    except EngineDeadError as error:
        raise EngineError("the vLLM engine died under the request; its log is in logs/ray of the state folder") from error
    except GracefulHTTPError as error:  # its queue is full: later it is not
        raise BusyError(error.message) from error
    except EngineGenerateError as error:  # of this request alone; the message is that of its cause
        raise UsageError(_line(error.__cause__ or error)) from error
    except (VLLMClientError, ValueError) as error:
        raise UsageError(_line(error)) from error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def generated(output: RequestOutput) -> Generated:
    best = output.outputs[0]
    return Generated(
        text=best.text,
        finish_reason=str(best.finish_reason or "stop"),
        token_ids=list(best.token_ids),
        usage=Usage(
            prompt_tokens=len(output.prompt_token_ids or ()),
            cached_tokens=int(output.num_cached_tokens or 0),
            output_tokens=len(best.token_ids),
            preemptions=int(getattr(output.metrics, "num_preemptions", 0) or 0),
        ),
        tops=[_top(place) for place in best.logprobs or ()],
        prompt_tops=[None if place is None else _top(place) for place in output.prompt_logprobs or ()],
    )


def _top(place: Mapping[int, Logprob]) -> Top:
    return {token: float(one.logprob) for token, one in place.items()}
