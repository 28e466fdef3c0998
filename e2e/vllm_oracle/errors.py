"""The one exception that this package raises on purpose."""


class OracleError(RuntimeError):
    """vLLM could not be installed, started or asked; the message says why and what to do."""
