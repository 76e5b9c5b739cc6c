"""Limits of the shell under which the libraries would end this process by a signal, without a word."""

from __future__ import annotations

import resource

from edgeflow.errors import StartError

LEAST_ADDRESS_SPACE = 1 << 30
"""On a CPU, control and the worker of the embedded policy map 1.2 GB each."""
LEAST_STACK = 1 << 20


def check_limits() -> None:
    """StartError for limits with which no service can start. Call it before the libraries are loaded."""
    for name, option, least in (("AS", "-v", LEAST_ADDRESS_SPACE), ("STACK", "-s", LEAST_STACK)):
        soft, _ = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
        if soft != resource.RLIM_INFINITY and soft < least:
            raise StartError(
                f"ulimit {option} is {soft >> 10} KiB, and the service needs at least {least >> 10}: raise the limit"
            )
