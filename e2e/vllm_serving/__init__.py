"""Real vLLM engines on a CPU behind the router, asked by the clients that trainers and agents use.

`launch` and `tiny_model` run in vLLM's environment, so they must not import anything but vLLM and what comes
with it; the rest runs beside the router and must not import vLLM.
"""
