"""Builders for tests. Production code must not import it."""
