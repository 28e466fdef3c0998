"""The `rolloutpool` command: local pools, plans, load and status.

A thin shell: it parses arguments, calls the other packages and prints. It must not decide anything.
"""
