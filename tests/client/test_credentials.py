"""What a robot shows to a protected service, what it never shows, and what it makes of a rejection."""

from __future__ import annotations

import logging
from pathlib import Path

import grpc
import numpy as np
import pytest
import trustme

from edgeflow_client.connection import credentials as module
from edgeflow_client.connection.credentials import TOKEN_VARIABLE, Credentials
from edgeflow_client.errors import InvalidArgument, PermissionDenied, Unauthenticated, Unavailable
from tests.client.scripted import CAMERA, Refuse, Talk, answer_all

TOKEN = "c5b1-token"
IMAGE = np.zeros((CAMERA.height, CAMERA.width, 3), np.uint8)
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


class CredentialFiles:
    """A CA with a certificate for the service and one for the robot."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        authority = trustme.CA()
        self.ca = folder / "ca.pem"
        authority.cert_pem.write_to_path(self.ca)
        robot = authority.issue_cert("robot.example")
        self.cert, self.key = folder / "robot.pem", folder / "robot.key"
        robot.cert_chain_pems[0].write_to_path(self.cert)
        robot.private_key_pem.write_to_path(self.key)
        self._service = authority.issue_cert("127.0.0.1", "localhost")

    def server(self, mutual: bool = False) -> grpc.ServerCredentials:
        pair = (self._service.private_key_pem.bytes(), self._service.cert_chain_pems[0].bytes())
        roots = self.ca.read_bytes() if mutual else None
        return grpc.ssl_server_credentials([pair], roots, mutual)


@pytest.fixture
def files(tmp_path: Path) -> CredentialFiles:
    return CredentialFiles(tmp_path / "ca")


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def test_nothing_is_shown_where_nothing_is_given(serve, connect):
    server = serve(answer_all)
    with connect(server):
        assert "authorization" not in server.metadata


def test_a_token_is_sent_over_loopback_and_nowhere_else(serve, connect, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    shown = Credentials(token=TOKEN)
    server = serve(answer_all)
    with connect(server, credentials=shown) as client:
        client.push(IMAGE)
    assert server.metadata["authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in repr(shown) and TOKEN not in str(shown) and TOKEN not in caplog.text


def test_the_environment_has_a_token(serve, connect, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(TOKEN_VARIABLE, f"{TOKEN}\n")
    server = serve(answer_all)
    with connect(server):
        assert server.metadata["authorization"] == f"Bearer {TOKEN}"


def test_a_token_never_leaves_the_machine_unencrypted(serve, connect, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_is_loopback", lambda address: False)
    server = serve(answer_all)
    with pytest.raises(Unavailable), connect(server, credentials=Credentials(token=TOKEN), open_timeout_s=1.0):
        pass
    assert server.streams == 0


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("127.0.0.1.example.org:1", False),
        ("10.0.0.1:1", False),
        ("robot:1", False),
        ("dns:///10.0.0.1:1", False),
    ],
)
def test_loopback_addresses(address: str, local: bool):
    assert module._is_loopback(address) is local


def test_tls(serve, connect, files: CredentialFiles, tmp_path: Path):
    server = serve(answer_all, credentials=files.server())
    with connect(server, credentials=Credentials(ca=files.ca, token=TOKEN)):
        assert server.metadata["authorization"] == f"Bearer {TOKEN}"
    for wrong in (Credentials(ca=CredentialFiles(tmp_path / "other").ca, token=TOKEN), None):
        with pytest.raises(Unavailable), connect(server, credentials=wrong, open_timeout_s=1.0):
            pass
    assert server.streams == 1


def test_mutual_tls(serve, connect, files: CredentialFiles, tmp_path: Path):
    server = serve(answer_all, credentials=files.server(mutual=True))
    with connect(server, credentials=Credentials(files.ca, files.cert, files.key)) as client:
        assert client.opened.model == "scripted"
    other = CredentialFiles(tmp_path / "other")
    for wrong in (Credentials(files.ca), Credentials(files.ca, other.cert, other.key)):
        with pytest.raises(Unavailable), connect(server, credentials=wrong, open_timeout_s=1.0):
            pass
    assert server.streams == 1


@pytest.mark.parametrize(
    ("code", "kind"),
    [(UNAUTHENTICATED, Unauthenticated), (grpc.StatusCode.PERMISSION_DENIED, PermissionDenied)],
)
def test_a_rejected_token_is_a_typed_error_at_once_and_not_shown_again(serve, connect, code, kind: type[Exception]):
    def refuse(talk: Talk) -> None:
        raise Refuse(code, "unknown token", edgeflow_reason="UNKNOWN_TOKEN")

    server = serve(refuse)
    with pytest.raises(kind, match="unknown token") as caught, connect(server, credentials=Credentials(token=TOKEN)):
        pass
    assert caught.value.reason == "UNKNOWN_TOKEN" and TOKEN not in caught.value.text
    assert server.streams == 1


def test_a_revoked_token_ends_the_session_for_good(serve, connect, eventually):
    def revoke(talk: Talk) -> None:
        if talk.number == 1:
            talk.open()
            talk.hear()
        raise Refuse(UNAUTHENTICATED, "the token no longer permits this")

    server = serve(revoke)
    with connect(server, credentials=Credentials(token=TOKEN)) as client:
        client.push(IMAGE)

        def refused() -> bool:
            try:
                client.push(IMAGE)
            except Unauthenticated:
                return True
            return False

        eventually(refused)
        assert client.latest().reason == "REFUSED"
    assert server.streams == 2


def test_files_that_cannot_be_used_are_named(serve, connect, files: CredentialFiles, tmp_path: Path):
    server = serve(answer_all)
    with pytest.raises(InvalidArgument, match=r"credentials\.ca: cannot read .*nope"):
        connect(server, credentials=Credentials(ca=tmp_path / "nope")).__enter__()
    for broken in ({"cert": files.cert}, {"key": files.key}, {"token": "two\nlines"}, {"token": "a b"}):
        with pytest.raises(InvalidArgument, match="credentials"):
            Credentials(**broken)
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgument, match="token_file"):
        Credentials.of(token_file=tmp_path / "token")
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert Credentials.of(token_file=tmp_path / "token").token == TOKEN
    assert server.streams == 0
