"""Traces of requests, where OTEL_EXPORTER_OTLP_ENDPOINT says where to send them; `spans` has what they are.

Without it nothing of OpenTelemetry is imported, and a request pays for a check for None. Needs the extra
`tracing`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rolloutpool_router.spans import Tracer

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Without one of them there are no traces."""


def tracer_from_environment(router: str, environ: Mapping[str, str] = os.environ) -> Tracer | None:
    """The tracer that the OTEL_ variables ask for; None, which costs nothing, where they ask for none.

    The SDK reads the others itself: OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER,
    OTEL_BSP_*, OTEL_EXPORTER_OTLP_HEADERS, _TIMEOUT, _COMPRESSION, _CERTIFICATE and so on.

    Args:
        router: this router's name, `service.instance.id` of the spans.
        environ: the process's environment.
    """
    wanted = any(environ.get(name) for name in ENDPOINTS)
    off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if not wanted or off or environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() == "none":
        return None
    if environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf") != "http/protobuf":
        log.warning("traces go by OTLP over HTTP with protobuf, whatever OTEL_EXPORTER_OTLP_PROTOCOL says")
    try:
        from rolloutpool_router.spans import exporting_tracer
    except ImportError:
        log.warning("no traces: install rolloutpool[tracing], or unset %s", " and ".join(ENDPOINTS))
        return None
    return exporting_tracer(router, named="OTEL_SERVICE_NAME" in environ)
