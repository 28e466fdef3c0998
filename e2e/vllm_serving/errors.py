"""The one exception that this package raises on purpose."""


class ServingError(RuntimeError):
    """An engine, the router or the model could not be made or asked; the message says why."""
