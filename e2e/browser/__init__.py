"""The debug page in a real browser: `make test-browser`, with Chromium from the distribution.

It must not be imported by the packages of the project.
"""
