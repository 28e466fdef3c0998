"""What is measured: one module each, with a function that takes a `Bench` and returns a `Report`.

They must not import the router: it runs in a process of its own.
"""
