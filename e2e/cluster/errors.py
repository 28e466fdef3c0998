"""The one exception that this package raises on purpose."""


class ClusterError(RuntimeError):
    """Something about the cluster failed; the message says what and shows what the program at fault said."""
