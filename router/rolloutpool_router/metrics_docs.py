"""Write docs/metrics.md: `python -m rolloutpool_router.metrics_docs [FILE ...]`.

The registry of a router is the only list of its metrics; `make verify` checks that the file says the same.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from prometheus_client.metrics_core import Metric

from rolloutpool_router.app import build_router
from rolloutpool_router.core.outcomes import Outcome
from rolloutpool_router.core.standing import Standing
from rolloutpool_router.decisions import ENTRY_REASONS, REASONS
from rolloutpool_router.metric_families import PREFIX
from rolloutpool_router.metrics import EngineFault
from rolloutpool_router.weights import WeightsCollector, WeightSync

HEAD = """# Metrics of the router

What `GET /metrics` of a router tells, in Prometheus' text format. Written by `make generate` from the
router's own registry; edit the texts there.

Labels have closed sets: nothing that a client sends becomes a label. Requests whose class is not known count
under `class=""`. Series of classes and engines that leave the pool go with them.
"""
LABELS = """
## Labels

| label | values |
|---|---|
"""
REASONS_HEAD = """
## Reasons

Why a request went to an engine: in the label `reason`, the answer header `X-RolloutPool-Reason`, the span
attribute `rolloutpool.reason`, and on the page `/debug/admission`.

| reason | meaning |
|---|---|
"""


async def registered() -> list[Metric]:
    """All metrics of a router, without series; needs no pool."""
    router = build_router("docs")
    sync = WeightSync(router.gate.controller.fleet, router.pause, clock=time.monotonic, limit=lambda: 0.0)
    router.metrics.registry.register(WeightsCollector(sync))
    try:
        return sorted(router.metrics.registry.collect(), key=name)
    finally:
        await sync.close()
        await router.upstream.close()


def document(metrics: Iterable[Metric]) -> str:
    """The whole file."""
    own = [metric for metric in metrics if metric.name.startswith(PREFIX)]
    others = [metric for metric in metrics if not metric.name.startswith(PREFIX)]
    return "".join(
        (
            HEAD,
            "\n## The router's own\n\n",
            _table(own),
            "\n## The process\n\nBy prometheus-client, on Linux.\n\n",
            _table(others),
            LABELS,
            *(f"| `{label}` | {values} |\n" for label, values in _labels().items()),
            REASONS_HEAD,
            *(f"| `{reason}` | {meaning} |\n" for reason, meaning in REASONS.items()),
        )
    )


def _table(metrics: Iterable[Metric]) -> str:
    rows = (f"| {name(m)} | {m.type} | {_names(labels(m))} | {m.documentation} |\n" for m in metrics)
    return "".join(("| metric | type | labels | meaning |\n|---|---|---|---|\n", *rows))


def name(metric: Metric) -> str:
    """As it is exposed: counters end in _total."""
    return f"`{metric.name}_total`" if metric.type == "counter" else f"`{metric.name}`"


def labels(metric: Metric) -> tuple[str, ...]:
    """The labels of its series."""
    return tuple(getattr(metric, "_labelnames", ()))


def _labels() -> Mapping[str, str]:
    return {
        "class": "the classes of the spec, or empty",
        "engine": "the engines of the pool",
        "outcome": _names(outcome.value for outcome in Outcome),
        "reason": _names(sorted(ENTRY_REASONS)),
        "fault": _names(fault.value for fault in EngineFault),
        "state": _names(standing.value for standing in Standing),
    }


def _names(values: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def main() -> None:
    """Write the files given, or standard output."""
    parser = argparse.ArgumentParser(description="Write the table of the router's metrics.")
    parser.add_argument("files", nargs="*", type=Path, help="files to write; none: standard output")
    files: list[Path] = parser.parse_args().files
    text = document(asyncio.run(registered()))
    if not files:
        sys.stdout.write(text)
    for path in files:
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
