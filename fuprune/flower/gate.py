"""The one door to a SuperLink from outside: it lets SuperNodes in, and nothing else.

A SuperLink answers on one port to nodes and to whoever starts runs, and only nodes have
to show a key. Whoever starts a run decides what server and clients execute. So the link
listens on loopback, and this proxy passes on what SuperNodes say, under `/v1/fleet/`;
everything else gets 404. Any proxy that does the same will do as well.
"""

import argparse
import re
import ssl
from pathlib import Path

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOR_NODES = re.compile(rb"/v1/fleet/[a-z-]+")
MOST_BYTES = 64 * 2**20  # of one request; Flower sends what is larger in pieces
_OF_THE_CONNECTION = {"connection", "content-length", "host", "transfer-encoding"}


def make_gate(client: httpx.AsyncClient) -> Starlette:
    """The proxy as an ASGI app, in front of a client of the link."""

    async def pass_on(request: Request) -> Response:
        # As it came: what decoding makes of a path is not for this door to say.
        if not FOR_NODES.fullmatch(request.scope["raw_path"]):
            return Response(status_code=404)
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_BYTES:
                return Response(status_code=413)
        path = request.scope["raw_path"].decode()
        try:
            answer = await client.post(path, content=body, headers=_kept(request))
        except httpx.TransportError:
            return Response(status_code=503)
        return Response(answer.content, answer.status_code, _kept(answer))

    return Starlette(routes=[Route("/{path:path}", pass_on, methods=["POST"])])


def _kept(message: Request | httpx.Response) -> dict[str, str]:
    # httpx has undone the encoding of what the link answered.
    dropped = _OF_THE_CONNECTION | {"content-encoding", "accept-encoding"}
    return {k: v for k, v in message.headers.items() if k.lower() not in dropped}


def main() -> None:
    """The command line; `launch.py` starts it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("keys", type=Path, help="folder that certificates.py filled")
    parser.add_argument("--link", required=True, help="address on loopback, host:port")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=443)
    given = parser.parse_args()
    trusted = ssl.create_default_context(cafile=str(given.keys / "ca.crt"))
    client = httpx.AsyncClient(
        base_url=f"https://{given.link}", verify=trusted, timeout=None
    )
    uvicorn.run(
        make_gate(client),
        host=given.host,
        port=given.port,
        ssl_certfile=str(given.keys / "superlink.crt"),
        ssl_keyfile=str(given.keys / "superlink.key"),
        log_level="warning",
    )


if __name__ == "__main__":
    main()
