"""The planner: which (role, tensor x pipeline parallel) groups to run, and how many replicas of each.

Everything but `solver` is pure: it must not run a solver, read a clock or do I/O. Only `solver`, `model` and
`search` know PuLP.
"""
