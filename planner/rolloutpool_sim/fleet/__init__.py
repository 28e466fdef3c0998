"""The fleet simulator: trainer, routers, operator and engines of one pool on a virtual clock.

The decisions are the real ones of `rolloutpool_router.core`; only time, requests and engines are simulated.
No I/O and no clock here, and randomness only from the seed of a run. Engines must not learn of classes, nor
routers of what the simulator knows about a session's future.
"""
