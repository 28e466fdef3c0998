"""Serves the debug page and its state."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from rolloutpool_router.debug.state import Shown, debug_state

if TYPE_CHECKING:
    from rolloutpool_router.app import Router

PATH = "/debug/admission"
FRESH_SECONDS = 0.5
"""How old a state may be that is sent: however many pages are open, it is made twice a second at most."""
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


def routes(router: Router) -> list[web.RouteDef]:
    """GET /debug/admission and GET /debug/admission/state of a router."""
    pages = _Pages(router)
    return [web.get(PATH, pages.page), web.get(f"{PATH}/state", pages.state)]


def content_security_policy(page: str) -> str:
    """A policy under which a page runs its own inline script and style, asks its server, and nothing else."""
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, text in _INLINE.findall(page):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        hashes[kind].append(f"'sha256-{digest}'")
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(hashes['script'])}",
            f"style-src {' '.join(hashes['style'])}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


class _Pages:
    """The two handlers, and the state that was made last."""

    def __init__(self, router: Router) -> None:
        page = files("rolloutpool_router.debug").joinpath("page.html").read_text(encoding="utf-8")
        self._page = page.encode()
        self._headers = {
            "Content-Security-Policy": content_security_policy(page),
            "Content-Type": "text/html; charset=utf-8",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        self._clock = router.clock
        self._shown = Shown(
            router=router.name,
            controller=router.gate.controller,
            peers=router.forwarding.peers,
            plane=router.metrics.plane,
            decisions=router.telemetry.decisions,
            status_age=lambda: router.feed.age_seconds,
            ignored=lambda: router.feed.ignored,
            draining=lambda: router.draining,
        )
        self._made_at = float("-inf")
        self._made = b""

    async def page(self, _: web.Request) -> web.Response:
        return web.Response(body=self._page, headers=self._headers)

    async def state(self, _: web.Request) -> web.Response:
        now = self._clock()
        if now - self._made_at >= FRESH_SECONDS:
            self._made = msgspec.json.encode(debug_state(self._shown, now))
            self._made_at = now
        headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        return web.Response(body=self._made, headers=headers, content_type="application/json")
