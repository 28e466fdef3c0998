"""`rolloutpool status NAME`: a pool of the cluster, as text."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
import urllib3
from kubernetes import client, config
from rich.live import Live
from rich.text import Text

from rolloutpool_api import labels
from rolloutpool_api.v1alpha1 import InvalidPool, parse_pool
from rolloutpool_cli.console import fail, output
from rolloutpool_cli.render import Event, describe

WATCH_SECONDS = 2.0
"""Between two looks with --watch."""
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
TIMEOUT_SECONDS = 10
"""Longest wait for the API server, in seconds."""


def status(
    name: Annotated[str, typer.Argument(help="Name of the RolloutPool.")],
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Default: that of the current context.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C.")
    ] = False,
) -> None:
    """Print a pool of the cluster: conditions, plan, admission and mixture."""
    current = _connect()
    namespace = namespace or current
    if not watch:
        output().print(_text(name, namespace), end="")
        return
    with Live(console=output(), auto_refresh=False, screen=output().is_terminal) as live:
        try:
            while True:
                live.update(Text(_text(name, namespace), no_wrap=True), refresh=True)
                time.sleep(WATCH_SECONDS)
        except KeyboardInterrupt:
            pass


def _connect() -> str:
    """Use the kubeconfig, or else the pod's own account; returns the namespace that goes with it."""
    try:
        config.load_kube_config()  # type: ignore[no-untyped-call]
        _, context = config.list_kube_config_contexts()  # type: ignore[no-untyped-call]
        return str(context.get("context", {}).get("namespace") or "default")
    except config.ConfigException as missing:
        try:
            config.load_incluster_config()  # type: ignore[no-untyped-call]
            return NAMESPACE_FILE.read_text().strip()
        except (config.ConfigException, OSError):
            fail(f"no cluster: {missing}; set KUBECONFIG, or use `rolloutpool local status`")


def _text(name: str, namespace: str) -> str:
    pools = client.CustomObjectsApi()
    try:
        body: Any = pools.get_namespaced_custom_object(
            labels.GROUP, labels.VERSION, namespace, labels.PLURAL, name, _request_timeout=TIMEOUT_SECONDS
        )
        events = client.CoreV1Api().list_namespaced_event(
            namespace,
            field_selector=f"involvedObject.kind={labels.KIND},involvedObject.name={name}",
            _request_timeout=TIMEOUT_SECONDS,
        )
        pool = parse_pool(body)
    except client.ApiException as error:
        fail(f"cannot read RolloutPool {namespace}/{name}: {error.status} {error.reason}")
    except urllib3.exceptions.HTTPError as error:
        fail(f"the cluster does not answer: {error}")
    except InvalidPool as error:
        fail(f"RolloutPool {namespace}/{name} is not valid:\n{error}")
    found = sorted((_event(item) for item in events.items), key=lambda event: event.last_seen)
    return describe(pool, events=found, now=datetime.now(UTC))


def _event(item: Any) -> Event:
    series = item.series
    seen = (series and series.last_observed_time) or item.last_timestamp or item.event_time
    return Event(
        type=item.type or "",
        reason=item.reason or "",
        message=item.message or "",
        count=(series and series.count) or item.count or 1,
        last_seen=(seen or item.metadata.creation_timestamp).isoformat(),
    )
