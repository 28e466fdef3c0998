"""Admission, placement and prefill/decode decisions, written once for router, simulator and operator.

Pure functions over frozen values. No I/O, no clock, no global randomness in here: callers pass `now` and a
random generator.
"""
