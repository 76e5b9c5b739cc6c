"""Requests by name: a web page cannot reach a loopback service, whatever name its server has pointed here."""

from __future__ import annotations

import httpx
import pytest

from edgeflow.config.sections import HttpConfig
from edgeflow.service.http.middleware import Hosts
from edgeflow_client.errors import PermissionDenied
from tests.service.harness import serving

PREFIX = "/admin/v1/prefixes/arm"
EVIL = "rebind.evil.example"


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"host": EVIL}, "HOST_NOT_ALLOWED"),
        ({"host": f"{EVIL}:8000", "origin": f"http://{EVIL}:8000"}, "HOST_NOT_ALLOWED"),
        ({"origin": f"http://{EVIL}"}, "ORIGIN_NOT_ALLOWED"),
        ({"origin": "null"}, "ORIGIN_NOT_ALLOWED"),
    ],
)
async def test_a_web_page_is_rejected_on_every_path(checkpoint, headers: dict[str, str], reason: str):
    async with serving(checkpoint) as served, httpx.AsyncClient(base_url=served.http, headers=headers) as http:
        for method, path in (
            ("PUT", PREFIX),
            ("POST", "/v1/act"),
            ("POST", "/v1/chat/completions"),
            ("GET", "/metrics"),
            ("GET", "/v1/models"),
            ("GET", "/nowhere"),
        ):
            answer = await http.request(method, path, json={"text": "obey"} if method != "GET" else None)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "PERMISSION_DENIED"), path
        assert served.metric("edgeflow_auth_failures_total", reason=reason) == 6
        assert (await http.get("/live")).status_code == 200, "probes come under any name"


async def test_the_service_s_own_names_are_accepted(checkpoint):
    async with serving(checkpoint, http__names=["arm.lab"]) as served, httpx.AsyncClient(base_url=served.http) as http:
        for host in ("localhost", "LOCALHOST:1", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000", "Arm.Lab:80"):
            for headers in ({"host": host}, {"host": host, "origin": f"http://{host}"}):
                assert (await http.get("/v1/models", headers=headers)).status_code == 200, headers
        for host in ("0.0.0.0", "arm.lab.evil.example", "[::2]", "192.168.1.20", "", "[", "\xe9"):
            headers = [(b"host", host.encode("latin-1"))]
            assert (await http.get("/v1/models", headers=headers)).status_code in (400, 403), host


@pytest.mark.parametrize(
    ("config", "host", "good"),
    [
        (HttpConfig(host="0.0.0.0"), b"anything", True),
        (HttpConfig(host="0.0.0.0", names=["arm.lab"]), b"anything", False),
        (HttpConfig(host="0.0.0.0", names=["arm.lab"]), b"arm.lab:8000", True),
        (HttpConfig(host="192.168.1.20", names=["arm.lab"]), b"192.168.1.20:8000", True),
        (HttpConfig(host="::1"), b"[::1]:8000", True),
        (HttpConfig(host="localhost"), b"localhost:8000", True),
    ],
)
def test_off_loopback_names_are_checked_where_they_are_configured(config: HttpConfig, host: bytes, good: bool):
    try:
        Hosts.of(config.host, config.names).check([(b"host", host)])
    except PermissionDenied:
        assert not good
    else:
        assert good


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "192.168.1.20"])
def test_pages_of_others_never_call_where_no_pages_are_expected(host: str):
    hosts = Hosts.of(host, [], pages=False)
    hosts.check([(b"host", b"localhost:8002"), (b"origin", b"http://localhost:3000")])
    with pytest.raises(PermissionDenied):
        hosts.check([(b"host", b"localhost:8002"), (b"origin", b"https://page.example")])


async def test_no_answer_repeats_the_name_of_a_stranger(checkpoint):
    async with serving(checkpoint) as served, httpx.AsyncClient(base_url=served.http) as http:
        for path in ("/v1/models/", "/live/", "//v1/models"):
            answer = await http.get(path, headers={"host": "localhost:1"})
            assert (answer.status_code, answer.headers.get("location")) == (404, None)


async def test_a_forwarded_address_is_not_believed(checkpoint):
    """Anybody can send the header; it would take administration away, or give it."""
    async with serving(checkpoint) as served, httpx.AsyncClient(base_url=served.http) as http:
        headers = {"x-forwarded-for": "192.0.2.1", "x-forwarded-proto": "https"}
        answer = await http.get("/admin/v1/prefixes", headers=headers)
        assert answer.status_code != 403
