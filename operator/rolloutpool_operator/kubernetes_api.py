"""The few requests that the operator makes of the Kubernetes API, asynchronous and bounded in time.

The official client is synchronous; every call runs in a small pool of threads of its own, so that neither
the event loop nor the planner waits for it.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kubernetes.client
import kubernetes.config
import urllib3

from rolloutpool_api import labels
from rolloutpool_operator.core.watched import POOL, Kind

TIMEOUT_SECONDS = (5.0, 20.0)
"""Longest time to connect and to read one answer."""
THREADS = 8
PAGE = 500
"""Objects in one page of a list."""

Body = dict[str, Any]


class ApiError(Exception):
    """The API server refused a request; `status` 0 means that it did not answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def load_client(*, in_cluster: bool) -> kubernetes.client.ApiClient:
    """A client configured from the pod's service account, or from KUBECONFIG.

    Raises:
        kubernetes.config.ConfigException: where there is neither.
    """
    configuration = kubernetes.client.Configuration()
    if in_cluster:
        kubernetes.config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    else:
        kubernetes.config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    configuration.connection_pool_maxsize = THREADS
    configuration.retries = False
    return kubernetes.client.ApiClient(configuration)


class KubernetesApi:
    """Requests by kind, namespace and name. All raise ApiError."""

    def __init__(
        self,
        client: kubernetes.client.ApiClient,
        *,
        on_answer: Callable[[bool], None] = lambda answered: None,
    ) -> None:
        """Make the requester; `on_answer` is told of every request whether the API server answered at all."""
        self._client = client
        self._on_answer = on_answer
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="kubernetes")

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Body | None:
        """One object; None where there is none."""
        try:
            return await self._request("GET", path(kind, namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def objects(self, kind: Kind, namespace: str | None, *, selector: str = "") -> list[Body]:
        """All objects of a namespace, or of all namespaces, that a label selector selects."""
        query = {"labelSelector": selector} if selector else {}
        return [item async for page in self.pages(kind, namespace, query) for item in page]

    async def pages(
        self, kind: Kind, namespace: str | None, query: Mapping[str, str]
    ) -> AsyncIterator[list[Body]]:
        """The same page by page, for lists that may be large; `query` may hold selectors."""
        following = ""
        while True:
            more = {"continue": following} if following else {}
            page = await self._request(
                "GET", path(kind, namespace), query={**query, "limit": str(PAGE), **more}
            )
            yield page.get("items") or []
            following = (page.get("metadata") or {}).get("continue") or ""
            if not following:
                return

    async def apply(self, kind: Kind, body: Mapping[str, Any]) -> Body:
        """Server-side apply: this operator owns the fields given, and takes them over where it must."""
        meta = body["metadata"]
        return await self._request(
            "PATCH",
            path(kind, meta.get("namespace"), meta["name"]),
            query={"fieldManager": labels.FIELD_MANAGER, "force": "true"},
            body=body,
            content_type="application/apply-patch+yaml",
        )

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete an object if it is still the one with this uid; its dependents go in the background."""
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self._request("DELETE", path(kind, namespace, name), body=options)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def create(self, kind: Kind, namespace: str, body: Mapping[str, Any]) -> Body:
        """Create an object."""
        return await self._request("POST", path(kind, namespace), body=body)

    async def patch_pool_status(
        self, namespace: str, name: str, status: Mapping[str, Any], *, resource_version: str
    ) -> Body:
        """Merge-patch a pool's status if the object is still at this version (else ApiError 409)."""
        body = {"metadata": {"resourceVersion": resource_version}, "status": status}
        return await self._request(
            "PATCH",
            f"{path(POOL, namespace, name)}/status",
            query={"fieldManager": labels.FIELD_MANAGER},
            body=body,
            content_type="application/merge-patch+json",
        )

    def close(self) -> None:
        """Give threads and connections back."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _request(
        self,
        method: str,
        resource: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Body:
        call = functools.partial(self._blocking, method, resource, query, body, content_type)
        loop = asyncio.get_running_loop()
        status, text = await loop.run_in_executor(self._threads, call)
        self._on_answer(status != 0)
        if not 200 <= status <= 299:
            raise ApiError(status, _message(method, resource, text))
        found: Body = json.loads(text)
        return found

    def _blocking(
        self,
        method: str,
        resource: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        content_type: str,
    ) -> tuple[int, str]:
        headers = {"Accept": "application/json", "Content-Type": content_type}
        # A text is sent as it is, whatever the content type.
        text = None if body is None else json.dumps(body)
        method, url, headers, _, _ = self._client.param_serialize(
            method,
            resource,
            query_params=list((query or {}).items()),
            header_params=headers,
            auth_settings=["BearerToken"],
        )
        try:
            answer = self._client.rest_client.pool_manager.request(
                method,
                url,
                body=text,
                headers=headers,
                timeout=urllib3.Timeout(*TIMEOUT_SECONDS),
                retries=False,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return 0, f"the API server does not answer: {error}"
        return answer.status, answer.data.decode()


def path(kind: Kind, namespace: str | None, name: str = "") -> str:
    """Path of a kind's collection, or of one object."""
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{scope}/{kind.plural}" + (f"/{name}" if name else "")


def _message(method: str, resource: str, text: str) -> str:
    try:
        words = json.loads(text).get("message") or text
    except (ValueError, AttributeError):
        words = text
    return f"{method} {resource}: {words}"
