"""The engine model held to vLLM's own scheduler, step by step.

Traces run twice: through `rolloutpool_sim.engine` and through vLLM's Scheduler and KVCacheManager, which
need no model and no GPU. `python -m vllm_oracle install` makes the environment in which vLLM's half runs.

`traces`, `driving` and `driver` run in that environment too, so they must not import anything but the
standard library, each other and (only `driver`) vLLM.
"""
