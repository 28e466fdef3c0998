"""A proxy that does nothing but pass requests on, on aiohttp: for orientation.

python -m router_bench.bare_proxy PORT ENGINE_URL...
"""

import itertools
import sys

import aiohttp
import uvloop
from aiohttp import web

from router_bench.processes import HOST

_HOP = frozenset({"connection", "transfer-encoding", "content-length", "host", "keep-alive"})


def build(engines: list[str]) -> web.Application:
    """The proxy as an application; engines take turns."""
    turns = itertools.cycle(engines)
    session = web.AppKey("session", aiohttp.ClientSession)

    async def connect(app: web.Application) -> None:
        app[session] = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )

    async def pass_on(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        url = next(turns) + request.path_qs
        async with request.app[session].request(request.method, url, data=body, headers=headers) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
            response = web.StreamResponse(status=answer.status, headers=kept)
            response.content_length = answer.content_length
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response

    app = web.Application(client_max_size=2**30)
    app.on_startup.append(connect)
    app.add_routes([web.route("*", "/{path:.*}", pass_on)])
    return app


if __name__ == "__main__":
    web.run_app(
        build(sys.argv[2:]),
        host=HOST,
        port=int(sys.argv[1]),
        access_log=None,
        print=None,
        loop=uvloop.new_event_loop(),
    )
