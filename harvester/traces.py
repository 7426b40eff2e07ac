"""OpenTelemetry traces: where they are sent, and the tracer of a process. Nothing of it is imported where no collector is named."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pydantic import Field

from jobs.config import Section

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

EXPORT_S = 5.0  # that one try to reach the collector takes at the longest
_providers: list[Any] = []  # of this process


class TraceConfig(Section):
    """Spans of chats and of slices, and vLLM's beneath those of chats, sent by OTLP over HTTP."""

    endpoint: str | None = Field(
        default=None, pattern=r"^https?://", description="URL of a collector, such as http://collector:4318/v1/traces. None: no traces."
    )
    sample: float = Field(default=1.0, ge=0.0, le=1.0, description="Share of the requests without a `traceparent` that are traced.")
    headers: dict[str, str] = Field(default_factory=dict, description="Headers for the collector, such as its key.")


def variables(config: TraceConfig) -> dict[str, str]:
    """OpenTelemetry's own variables, which vLLM's processes read too; none without a collector."""
    if config.endpoint is None:
        return {}
    return {
        "OTEL_SERVICE_NAME": "harvester",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_HEADERS": ",".join(f"{name}={value}" for name, value in config.headers.items()),
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": str(config.sample),
    }


def tracer_of(config: TraceConfig, process: str) -> Tracer | None:
    """Of this process; None without a collector. One that does not answer slows nothing: spans wait in a queue of bounded length.

    Sets `variables`, unless the user has set them.
    """
    if config.endpoint is None:
        return None
    for name, value in variables(config).items():
        os.environ.setdefault(name, value)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"harvester.process": process}))
    exporter = OTLPSpanExporter(endpoint=config.endpoint, headers=dict(config.headers), timeout=EXPORT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    _providers.append(provider)
    return provider.get_tracer("harvester")


def flush() -> None:
    """Send the spans that wait in this process, vLLM's too: they leave every five seconds, and Ray ends its processes without a goodbye.

    A collector that does not answer holds it up for `EXPORT_S`, and as long as vLLM's own exporter waits.
    """
    if not _providers:
        return
    from opentelemetry import trace

    for provider in (*_providers, trace.get_tracer_provider()):
        if hasattr(provider, "force_flush"):  # vLLM sets one where it traces
            provider.force_flush(int(EXPORT_S * 1000))
