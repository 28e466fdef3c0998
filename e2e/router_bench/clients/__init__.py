"""Load generators on asyncio protocols and uvloop, each run as a process of its own.

`python -m router_bench.clients.NAME SETTINGS`: settings as JSON; results as JSON lines on stdout.
They must not import the router: it runs in a process of its own.
"""
