"""The engine model: a vLLM-like scheduler and paged KV cache on a passed-in clock, and its HTTP emulator.

`engine` is pure and steps on the caller's clock; only `emulator` does I/O. The model must not know any
admission policy: policies live in `rolloutpool_router.core`.
"""
