"""TLS of the gateway: certificate and key come from control as sealed memory, never from files."""

from __future__ import annotations

import ssl
from collections.abc import Sequence

from edgeflow_client.errors import WorkerError


def server_context(descriptors: Sequence[int]) -> ssl.SSLContext:
    """The context for a certificate chain, its key and, as a third, the CA of client certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_pair(context, descriptors)
    if len(descriptors) > 2:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(_path(descriptors[2]))
    return context


def load_pair(context: ssl.SSLContext, descriptors: Sequence[int]) -> None:
    """Use a certificate chain and key for new connections."""
    if len(descriptors) < 2:
        raise WorkerError("certificates lack a descriptor")
    context.load_cert_chain(_path(descriptors[0]), _path(descriptors[1]))


def _path(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"
