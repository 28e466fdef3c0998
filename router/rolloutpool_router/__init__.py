"""The router: an OpenAI-compatible HTTP server in front of a pool's engines.

The shell around `rolloutpool_router.core`. It must not import kopf, the `kubernetes` client, the planner, the
simulator or the operator: its image stays small, and it goes on when all of those are away.
"""
