"""The one exception that this package raises on purpose."""


class BenchError(RuntimeError):
    """Something that the benchmarks need is missing or failed; the message says why and what to do."""
