"""The middleware of requests from the gateway, which has checked their heads and callers; nobody else connects."""

from __future__ import annotations

from starlette.types import Receive, Scope

from edgeflow.service.http.answers import CALLER, Answers
from edgeflow.service.security.auth import Caller

PEER, PRINCIPAL, TOKEN = b"x-edgeflow-peer", b"x-edgeflow-principal", b"x-edgeflow-token"


class InnerEdge(Answers):
    """The caller is who the gateway says it is."""

    def admit(self, scope: Scope, receive: Receive) -> Receive:
        headers = dict(scope["headers"])
        scope[CALLER] = Caller(*(headers.get(name, b"").decode("latin-1") for name in (PEER, PRINCIPAL, TOKEN)))
        return receive
