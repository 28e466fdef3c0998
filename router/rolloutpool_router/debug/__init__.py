"""GET /debug/admission: one self-contained page that shows, live, what the router decides and why.

It only looks: it must not change the router's state, fetch anything from elsewhere, or show what is secret.
"""

from rolloutpool_router.debug.handlers import routes

__all__ = ["routes"]
