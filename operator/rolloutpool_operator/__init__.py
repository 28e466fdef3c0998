"""The operator: gather -> decide -> apply -> report for every RolloutPool.

The shell around `rolloutpool_operator.core`. Domain decisions must not be made in it.
"""
