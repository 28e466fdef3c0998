"""The one exception that this package raises on purpose."""


class InstallError(RuntimeError):
    """vLLM is not installed or cannot be; the message says why and what to do."""
