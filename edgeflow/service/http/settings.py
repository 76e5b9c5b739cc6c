"""Settings of the web server that the gateway and the chat front share."""

from __future__ import annotations

import logging

import uvicorn
from starlette.types import ASGIApp


def quiet_settings(app: ASGIApp) -> uvicorn.Config:
    """Settings without logs, which would repeat what clients send, and without trust in a proxy's headers."""
    logging.getLogger("uvicorn").addHandler(logging.NullHandler())
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_keep_alive=5,
        timeout_graceful_shutdown=1,
    )
