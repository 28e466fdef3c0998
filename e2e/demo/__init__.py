"""`make demo`: the whole path on this machine, and the steps that the whole-system tests share with it.

Everything goes through what a user has (helm, kubectl, the router's address); it must not reach into the
packages of the project.
"""
