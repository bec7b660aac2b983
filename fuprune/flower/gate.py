"""The one door to a SuperLink from outside: it lets SuperNodes in, and nothing else.

A SuperLink answers on one port to nodes and to whoever starts runs, who decides what
server and clients execute. So the link listens on loopback, and this proxy passes on
what SuperNodes say, under `/v1/fleet/`; everything else gets 404.
"""

import re
import socket
import ssl
import threading
from pathlib import Path

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOR_NODES = re.compile(rb"/v1/fleet/[a-z-]+")
MOST_BYTES = 64 * 2**20  # of one request; Flower sends what is larger in pieces
# Headers of one connection; httpx has undone the encoding of what the link answered.
_DROPPED = {"connection", "content-length", "host", "transfer-encoding"}
_DROPPED |= {"content-encoding", "accept-encoding"}


def make_gate(client: httpx.AsyncClient) -> Starlette:
    """The proxy as an ASGI app, in front of a client of the link."""

    async def pass_on(request: Request) -> Response:
        # As it came: what decoding makes of a path is not for this door to say.
        path = request.scope["raw_path"]
        if not FOR_NODES.fullmatch(path):
            return Response(status_code=404)
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_BYTES:
                return Response(status_code=413)
        try:
            answer = await client.post(
                path.decode(), content=body, headers=_kept(request)
            )
        except httpx.TransportError:
            return Response(status_code=503)
        return Response(answer.content, answer.status_code, _kept(answer))

    return Starlette(routes=[Route("/{path:path}", pass_on, methods=["POST"])])


def _kept(message: Request | httpx.Response) -> dict[str, str]:
    return {k: v for k, v in message.headers.items() if k.lower() not in _DROPPED}


def open_gate(keys: Path, link: str, host: str, port: int) -> int:
    """Opens the gate in front of a link, `host:port`, in a thread; its own port."""
    trusted = ssl.create_default_context(cafile=str(keys / "ca.crt"))
    client = httpx.AsyncClient(base_url=f"https://{link}", verify=trusted, timeout=None)
    bound = socket.create_server((host, port))
    server = uvicorn.Server(
        uvicorn.Config(
            make_gate(client),
            ssl_certfile=str(keys / "superlink.crt"),
            ssl_keyfile=str(keys / "superlink.key"),
            log_level="warning",
            ws="none",
        )
    )
    threading.Thread(target=server.run, args=([bound],), daemon=True).start()
    return bound.getsockname()[1]
