"""vLLM on a machine without a GPU: a Python environment with it, made once and kept in the cache.

`vllm_oracle` runs vLLM's scheduler in it, `vllm_serving` whole engines. Nothing of vLLM is imported here: it
must not be needed to say that it is missing.
"""
