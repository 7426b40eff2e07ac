"""OpenTelemetry traces: where they are sent, and the tracer of a process. The library is imported only where a collector is configured."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pydantic import Field

from jobs.config import Section

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

EXPORT_S = 5.0  # timeout of one export to the collector
_providers: list[Any] = []  # of this process


class TraceConfig(Section):
    """Spans of chats and of slices, and vLLM's beneath those of chats, sent by OTLP over HTTP."""

    endpoint: str | None = Field(
        default=None, pattern=r"^https?://", description="URL of a collector, such as http://collector:4318/v1/traces. None: no traces."
    )
    sample: float = Field(default=1.0, ge=0.0, le=1.0, description="Share of the requests without a `traceparent` that are traced.")
    headers: dict[str, str] = Field(default_factory=dict, description="Headers for the collector, such as its key.")


def variables(config: TraceConfig) -> dict[str, str]:
    """OpenTelemetry's own environment variables, which vLLM's processes read too; none without a collector."""
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
    """Tracer of this process; None without a collector. A collector that does not answer slows nothing: spans wait in a bounded queue.

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
    """Send the queued spans of this process, vLLM's too: they are sent every five seconds, and Ray ends its processes without notice.

    A collector that does not answer blocks this call for `EXPORT_S`, plus the time that vLLM's own exporter waits.
    """
    if not _providers:
        return
    from opentelemetry import trace

    for provider in (*_providers, trace.get_tracer_provider()):
        if hasattr(provider, "force_flush"):  # vLLM sets one where it traces
            provider.force_flush(int(EXPORT_S * 1000))
