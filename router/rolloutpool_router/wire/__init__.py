"""HTTP/1.1 on asyncio protocols, for the requests that carry rollouts.

`server` reads clients' requests, `client` sends them to engines over kept connections, and an engine's answer
is passed on to its client byte by byte as it comes. Heads and framing are parsed by llhttp (httptools).
It must not know of sessions, health or admission, start a task per request, or set a timer per connection.
"""
