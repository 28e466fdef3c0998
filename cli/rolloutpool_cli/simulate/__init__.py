"""Experiments on the fleet simulator: what to run, running it, and what the runs say.

Everything but `runner` (processes), `files` and `figures` (matplotlib) is pure. What a fleet does must not be
decided here but in `rolloutpool_sim.fleet`: an experiment only says which scenarios to compare.
"""
