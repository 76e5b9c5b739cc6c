"""TLS and mutual TLS of both servers, files that cannot be used, and new certificates without a restart."""

from __future__ import annotations

import asyncio
import io
import json
import ssl
import warnings
from datetime import datetime, timedelta, timezone
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives import serialization

from edgeflow.config.sections import TlsConfig
from edgeflow.config.service import load_config
from edgeflow.service.observe.log import EventLog
from edgeflow.service.security.tls import Tls
from edgeflow_client.clock import MonotonicClock
from edgeflow_client.connection.credentials import Credentials, channel
from edgeflow_client.errors import ConfigError
from tests.service.harness import eventually, serving
from tests.service.protected import Authority, outcome, robot_with, write_tokens

NOW = datetime.now(timezone.utc)
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("strange"))


def options(authority: Authority, mutual: bool = False) -> dict[str, str]:
    cert, key = authority.issue("service")
    files = {"tls__cert": str(cert), "tls__key": str(key)}
    return files | {"tls__client_ca": str(authority.ca)} if mutual else files


async def serial(address: str, authority: Authority) -> str:
    """Of the certificate that a new connection is shown."""
    host, port = address.removeprefix("https://").split(":")
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    found: str = writer.get_extra_info("peercert")["serialNumber"]
    writer.transport.abort()
    return found


async def accepts(address: str, authority: Authority, version: ssl.TLSVersion) -> bool:
    """Whether a handshake of that version succeeds."""
    host, port = address.removeprefix("https://").split(":")
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.set_alpn_protocols(["h2"])
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        context.minimum_version = context.maximum_version = version
    try:
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    except (ssl.SSLError, ConnectionError):
        return False
    writer.transport.abort()
    return True


async def test_tls_on_both_ports(checkpoint, authority: Authority, stranger: Authority):
    async with serving(checkpoint, **options(authority)) as served:
        for shown, status in (
            (Credentials(ca=authority.ca), "OK"),
            (Credentials(ca=stranger.ca), "UNAVAILABLE"),
            (None, "UNAVAILABLE"),
        ):
            async with robot_with(served, shown) as robot:
                assert await outcome(robot) == status
        assert served.http.startswith("https://")
        async with httpx.AsyncClient(verify=ssl.create_default_context(cafile=str(authority.ca))) as http:
            assert (await http.get(f"{served.http}/healthz")).json() == {"state": "ready"}
        async with httpx.AsyncClient(verify=ssl.create_default_context(cafile=str(stranger.ca))) as http:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await http.get(f"{served.http}/healthz")
        async with httpx.AsyncClient() as http:
            with pytest.raises(httpx.TransportError):
                await http.get(served.http.replace("https", "http") + "/healthz")


async def test_mutual_tls(checkpoint, authority: Authority, stranger: Authority):
    cert, key = authority.issue("robot", "arm-1.example")
    other_cert, other_key = stranger.issue("robot", "arm-1.example")
    async with serving(checkpoint, **options(authority, mutual=True)) as served:
        for shown, status in (
            (Credentials(ca=authority.ca, cert=cert, key=key), "OK"),
            (Credentials(ca=authority.ca), "UNAVAILABLE"),
            (Credentials(ca=authority.ca, cert=other_cert, key=other_key), "UNAVAILABLE"),
        ):
            async with robot_with(served, shown) as robot:
                assert await outcome(robot) == status
        context = ssl.create_default_context(cafile=str(authority.ca))
        async with httpx.AsyncClient(verify=context) as http:
            with pytest.raises(httpx.TransportError):
                await http.get(f"{served.http}/healthz")
        context = ssl.create_default_context(cafile=str(authority.ca))
        context.load_cert_chain(cert, key)
        async with httpx.AsyncClient(verify=context) as http:
            assert (await http.get(f"{served.http}/healthz")).status_code == 200


async def test_tls_and_token_together(checkpoint, authority: Authority, tmp_path: Path):
    tokens = write_tokens(tmp_path / "tokens.json", ("robot-token", "arm-1", "control"))
    async with serving(checkpoint, tokens_file=tokens, **options(authority)) as served:
        for value, status in (("robot-token", "OK"), ("", "UNAUTHENTICATED"), ("wrong", "UNAUTHENTICATED")):
            async with robot_with(served, Credentials(ca=authority.ca, token=value)) as robot:
                assert await outcome(robot) == status


async def test_nothing_below_tls_1_2(checkpoint, authority: Authority):
    async with serving(checkpoint, **options(authority)) as served:
        for address in (served.service.status.grpc_address, served.http):
            for version in (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2):
                assert await accepts(address, authority, version)
            assert not await accepts(address, authority, ssl.TLSVersion.TLSv1_1)


async def test_new_certificates_hold_for_new_connections(checkpoint, authority: Authority):
    async with (
        serving(checkpoint, **options(authority)) as served,
        robot_with(served, Credentials(ca=authority.ca)) as robot,
    ):
        await robot.open()
        addresses = (served.service.status.grpc_address, served.http)
        before = {await serial(address, authority) for address in addresses}
        assert len(before) == 1
        authority.issue("service")
        await eventually(lambda: bool(served.events("certificate_read")))
        after = {await serial(address, authority) for address in addresses}
        assert len(after) == 1 and after != before
        await robot.frame(1)
        await robot.action(1)


async def test_certificates_that_cannot_be_used_change_nothing(checkpoint, authority: Authority):
    files = options(authority)
    async with serving(checkpoint, **files) as served:
        before = await serial(served.http, authority)
        cert, _ = authority.issue("another")
        cert.replace(files["tls__cert"])
        await eventually(lambda: bool(served.events("certificate_kept")))
        assert {await serial(served.http, authority), await serial(served.service.status.grpc_address, authority)} == {
            before
        }


async def test_off_loopback_works_with_tls_and_tokens_only(checkpoint, authority: Authority, tmp_path: Path):
    tokens = write_tokens(tmp_path / "tokens.json", ("robot-token", "arm-1", "control"))
    files = options(authority)
    with pytest.raises(
        ConfigError, match=r"grpc\.host: 0\.0\.0\.0 is reachable from other machines: configure tls\.cert"
    ):
        load_config(None, {"grpc.host": "0.0.0.0", "tls.cert": files["tls__cert"], "tls.key": files["tls__key"]})
    with pytest.raises(ConfigError, match=r"http\.host"):
        load_config(None, {"http.host": "0.0.0.0", "tokens_file": tokens})
    async with serving(checkpoint, grpc__host="0.0.0.0", tokens_file=tokens, **files) as served:
        assert served.events("warning") == []
        port = served.service.status.grpc_port
        shown = Credentials(ca=authority.ca, token="robot-token")
        async with channel(f"127.0.0.1:{port}", shown, (), aio=True) as opened:
            assert await outcome(served.robot(opened)) == "OK"


async def test_insecure_is_warned_about(checkpoint):
    async with serving(checkpoint, grpc__host="0.0.0.0", insecure=True) as served:
        (warning,) = served.events("warning")
        assert warning["text"] == "grpc.host 0.0.0.0 is reachable from other machines without TLS or tokens"


def unreadable(files: TlsConfig, _: Authority) -> TlsConfig:
    Path(files.key).unlink()
    return files


def foreign_key(files: TlsConfig, authority: Authority) -> TlsConfig:
    _, key = authority.issue("foreign")
    return files.model_copy(update={"key": str(key)})


def public_key(files: TlsConfig, _: Authority) -> TlsConfig:
    Path(files.key).chmod(0o644)
    return files


def no_pem(files: TlsConfig, _: Authority) -> TlsConfig:
    Path(files.cert).write_text("not a certificate")
    return files


def no_client_ca(files: TlsConfig, _: Authority) -> TlsConfig:
    return files.model_copy(update={"client_ca": files.key})


def encrypted(files: TlsConfig, _: Authority) -> TlsConfig:
    key = serialization.load_pem_private_key(Path(files.key).read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"locked"),
    )
    Path(files.key).write_bytes(locked)
    return files


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (unreadable, "tls.key: cannot read"),
        (foreign_key, "does not match the certificate"),
        (public_key, "tls.key: .*chmod o-rwx"),
        (no_pem, "both must be PEM"),
        (no_client_ca, "tls.client_ca: .* contains no PEM certificate"),
        (encrypted, "tls.key: .* is encrypted"),
    ],
)
def test_files_that_cannot_be_used_are_named(tmp_path: Path, damage, message: str):
    authority = Authority(tmp_path)
    cert, key = authority.issue("service")
    files = damage(TlsConfig(cert=str(cert), key=str(key)), authority)
    with pytest.raises(ConfigError, match=message) as caught:
        Tls(files, EventLog(MonotonicClock(), io.StringIO()))
    assert "\n" not in caught.value.text


@pytest.mark.parametrize(
    ("dates", "words"),
    [
        ({"not_before": NOW - 2 * DAY, "not_after": NOW - DAY}, "has expired"),
        ({"not_before": NOW + DAY, "not_after": NOW + 2 * DAY}, "is not valid yet"),
        ({"not_before": NOW - DAY, "not_after": NOW + 3 * DAY}, "expires in 3 days"),
        ({"not_before": NOW - DAY, "not_after": NOW + 60 * DAY}, ""),
    ],
)
def test_dates_of_a_certificate_are_warned_about(tmp_path: Path, dates: dict[str, datetime], words: str):
    cert, key = Authority(tmp_path).issue("service", **dates)
    log = io.StringIO()
    Tls(TlsConfig(cert=str(cert), key=str(key)), EventLog(MonotonicClock(), log))
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line["event"] for line in lines] == (["warning"] if words else [])
    assert words in log.getvalue()


def test_certificate_and_key_come_together():
    for values in ({"tls.cert": "x"}, {"tls.key": "x"}, {"tls.client_ca": "x"}):
        with pytest.raises(ConfigError, match="tls"):
            load_config(None, values)
