"""A pool without Kubernetes: engines and router as processes of this machine, the object in a file.

Adapters alone; what is decided about a pool must not be decided here, but in `rolloutpool_operator.core`.
"""
