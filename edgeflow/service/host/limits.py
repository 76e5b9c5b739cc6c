"""Limits of the shell under which the service could not start, or the libraries would end it without a word."""

from __future__ import annotations

import resource

from edgeflow_client.errors import StartError

LEAST_ADDRESS_SPACE = 1 << 30
"""On a CPU, control and the worker of the embedded policy map 1.2 GB each."""
LEAST_STACK = 1 << 20
LEAST_DESCRIPTORS = 48
"""With fewer, worker and children cannot be started; with fewer than 24, libraries in C end the process."""
LIMITS = (
    (resource.RLIMIT_AS, "-v", LEAST_ADDRESS_SPACE, 1024, " KiB"),
    (resource.RLIMIT_STACK, "-s", LEAST_STACK, 1024, " KiB"),
    (resource.RLIMIT_NOFILE, "-n", LEAST_DESCRIPTORS, 1, ""),
)
"""Limit, option of `ulimit`, least value, and the unit in which `ulimit` counts."""


def check_limits() -> None:
    """StartError for limits with which no service can start. Call it before the libraries are loaded."""
    for limit, option, least, each, unit in LIMITS:
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY and soft < least:
            raise StartError(
                f"ulimit {option} is {soft // each}{unit}, and the service needs at least {least // each}: "
                "raise the limit"
            )
