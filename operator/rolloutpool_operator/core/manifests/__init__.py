"""Builders of the Kubernetes objects of a pool: equal to the byte for equal input.

No I/O and no clock in here: an object that differs without a change of the pool would be written for ever.
"""
