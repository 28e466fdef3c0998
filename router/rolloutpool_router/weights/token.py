"""The token that weight synchronisation asks for: in a file, such as a mounted Secret, and never in a log."""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
from pathlib import Path

log = logging.getLogger(__name__)

CHALLENGE = 'Bearer realm="rolloutpool weights", Basic realm="rolloutpool weights"'
"""WWW-Authenticate of a refusal."""
MAX_TOKEN_BYTES = 4096

_Stamp = tuple[int, int, int]


class TokenFile:
    """Says whether a request carries the token; the file is read again whenever it changes."""

    def __init__(self, path: Path) -> None:
        """Read the token from `path`; while it is missing or empty, nobody is let in."""
        self._path = path
        self._stamp: _Stamp | None = None
        self._token = b""

    def admits(self, authorization: str | None) -> bool:
        """Whether a request with this Authorization header may do what it asks.

        It carries the token as `Bearer TOKEN`, or as the password of Basic (RFC 7617) with any user name:
        HTTP clients that cannot be told a header send that for `http://user:TOKEN@host/`.
        """
        scheme, _, value = (authorization or "").partition(" ")
        given = _credential(scheme.lower(), value.strip())
        token = self._read()
        return bool(token) and given is not None and hmac.compare_digest(given, token)

    def _read(self) -> bytes:
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if stamp != self._stamp:
                with self._path.open("rb") as file:
                    self._token = file.read(MAX_TOKEN_BYTES).strip()
                self._stamp = stamp
                if not self._token:
                    log.error("%s is empty: put the token of weight synchronisation there", self._path)
        except OSError as error:
            if self._stamp is not None or not self._token:
                log.error("the token of weight synchronisation cannot be read: %s", error.strerror)
            self._stamp, self._token = None, b""
        return self._token


def _credential(scheme: str, value: str) -> bytes | None:
    if scheme == "bearer":
        return value.encode(errors="surrogateescape")  # headers are decoded so, whatever bytes came
    if scheme != "basic":
        return None
    try:
        pair = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return None
    return pair.partition(b":")[2]
