"""Two network namespaces joined by an emulated link: the service's, and the robot's.

Each has a TUN device; a forwarder carries packets between them. Making namespaces needs root or user namespaces, and
/dev/net/tun.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import subprocess
import sys
from types import TracebackType

from benchmarks.links.model import EmulatedLink
from edgeflow_client.errors import StartError

SERVICE, ROBOT = "10.77.0.1", "10.77.0.2"
INSIDE = "EDGEFLOW_LINKS_INSIDE"
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000
MTU, QUEUE = 1500, 5000


def enter() -> None:
    """Run this command again in its own network namespace, unless it runs in one."""
    if INSIDE in os.environ:
        return
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = ["unshare", *user, "--net", sys.executable, *sys.orig_argv[1:]]
    os.execvpe("unshare", command, {**os.environ, INSIDE: "1"})


class RobotNetwork:
    """Call in the service's namespace, in the main thread: from then on that thread is in the robot's namespace.

    Processes that were started before stay in the service's. `link` joins the namespaces.
    """

    def __init__(self) -> None:
        _ip("link", "set", "lo", "up")
        self._service = _tun("service0", SERVICE)

    def __enter__(self) -> RobotNetwork:
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
            raise StartError(f"no network namespace: {os.strerror(ctypes.get_errno())}")
        _ip("link", "set", "lo", "up")
        self._robot = _tun("robot0", ROBOT)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._service)
        os.close(self._robot)

    def link(self, link: EmulatedLink) -> subprocess.Popen[bytes]:
        """The forwarder of a link, which ends when its input is closed."""
        ends = (self._service, self._robot)
        command = [sys.executable, "-m", "benchmarks.links.forwarder", *map(str, ends), link.name]
        return subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=ends)


def _tun(name: str, address: str) -> int:
    """The descriptor of a new TUN device of this namespace."""
    try:
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise StartError(f"/dev/net/tun: {error.strerror}") from None
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    _ip("address", "add", f"{address}/24", "dev", name)
    _ip("link", "set", name, "mtu", str(MTU), "txqueuelen", str(QUEUE), "up")
    return device


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
