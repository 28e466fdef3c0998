"""Our router measured against others: the same engines and the same load, in one run, as ratios.

Run it from the checkout as `PYTHONPATH=e2e python -m router_bench COMMAND`. The other routers come from PyPI
into environments of their own, in the cache. It must not load any address but 127.0.0.1, nor run
longer than it says.
"""
