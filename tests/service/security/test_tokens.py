"""Every call and every route asks for a token with the right role, and a revoked one ends what it began."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import grpc
import httpx
import pytest
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc

from edgeflow.service.gateway import gateway as gateway_module
from edgeflow.service.http.middleware import ADMIN_PATH, OPEN_PATHS, PAGE, ROLES, ROOT, listed
from edgeflow.service.security.auth import new_token, read_tokens
from edgeflow_client.connection.credentials import Credentials, channel
from edgeflow_client.errors import ConfigError
from edgeflow_client.rpc import control_pb2 as pb
from tests.service.harness import eventually, frame_message, open_message, serving
from tests.service.protected import call, outcome, robot_with, write_tokens

HEALTH = "grpc.health.v1.Health"
ROBOT, EYE, BOSS = "robot-token", "eye-token", "boss-token"
ENTRIES = ((ROBOT, "arm-1", "control"), (EYE, "panel", "observe"), (BOSS, "boss", "admin"))


def token(value: str) -> Credentials:
    return Credentials(token=value)


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    return write_tokens(tmp_path / "tokens.json", *ENTRIES)


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all services that a server is given."""
    found: list[str] = []
    make = grpc.aio.server

    def spy(*arguments, **options):
        server = make(*arguments, **options)
        add = server.add_generic_rpc_handlers
        server.add_generic_rpc_handlers = lambda handlers: (
            found.extend(h.service_name() for h in handlers),
            add(handlers),
        )
        return server

    monkeypatch.setattr(grpc.aio, "server", spy)
    return found


@pytest.fixture
def apps(monkeypatch: pytest.MonkeyPatch) -> list:
    """Every HTTP application that is built."""
    found: list = []
    make = gateway_module.build_app
    monkeypatch.setattr(
        gateway_module, "build_app", lambda *given, **named: found.append(make(*given, **named)) or found[-1]
    )
    return found


def methods(service: str) -> list[str]:
    descriptor = descriptor_pool.Default().FindServiceByName(service)
    return [f"/{service}/{method.name}" for method in descriptor.methods]


async def test_every_call_but_health_needs_a_token(checkpoint, tokens: str, services: list[str]):
    request = pb.ClientMessage(open=open_message()).SerializeToString()
    async with serving(checkpoint, tokens_file=tokens) as served:
        assert {"edgeflow.v1.Control", HEALTH} < set(services)
        every = [method for service in services for method in methods(service)]
        assert len(every) >= 5
        attempts: list[str] = []
        for method in [*every, "/edgeflow.v1.Control/Nope", "/no.such.Service/Call"]:
            if not method.startswith(f"/{HEALTH}/"):
                code = await call(served.channel, method, request, attempts)
                assert code is grpc.StatusCode.UNAUTHENTICATED, method
        health = health_pb2_grpc.HealthStub(served.channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == 1
        assert served.metric("edgeflow_sessions_opened_total") == 0
        assert len(set(attempts)) == len(every) + 2 - len(methods(HEALTH))
        assert served.metric("edgeflow_auth_failures_total", reason="NO_TOKEN") == len(attempts)


async def test_every_route_but_health_and_the_page_needs_a_token(checkpoint, tokens: str, apps: list):
    async with serving(checkpoint, tokens_file=tokens) as served, httpx.AsyncClient(base_url=served.http) as http:
        (application,) = apps
        routes = [(route.path, method) for route in application.routes for method in route.methods]
        ours = {path for path, _ in routes if not path.startswith(ADMIN_PATH)}
        page = {ROOT, f"{PAGE}/{{name}}"}
        asking = {listed(path) for path in ours - OPEN_PATHS - page}
        assert asking <= set(ROLES), "name a role for it"
        assert len(routes) >= 7
        for path, method in [*routes, ("/no/such/route", "GET"), ("/v1/act", "OPTIONS"), ("/v1/%61ct", "POST")]:
            answer = await http.request(method, path)
            if path in OPEN_PATHS | page:
                assert answer.status_code in (200, 404, 405), path
            else:
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
        assert served.metric("edgeflow_sessions_opened_total") == 0


@pytest.mark.parametrize(
    ("shown", "status"),
    [
        (token(ROBOT), "OK"),
        (token(BOSS), "OK"),
        (token(EYE), "PERMISSION_DENIED"),
        (token(ROBOT[:-1]), "UNAUTHENTICATED"),
        (token("x" * 600), "UNAUTHENTICATED"),
        (None, "UNAUTHENTICATED"),
    ],
    ids=["control", "admin", "observe", "wrong", "long", "none"],
)
async def test_sessions_need_the_role_control(checkpoint, tokens: str, shown: Credentials | None, status: str):
    async with serving(checkpoint, tokens_file=tokens) as served, robot_with(served, shown) as robot:
        assert await outcome(robot) == status
        assert served.metric("edgeflow_sessions_opened_total") == (status == "OK")


async def test_unknown_methods_are_for_admin(checkpoint, tokens: str):
    async with serving(checkpoint, tokens_file=tokens) as served:
        reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        for value, codes in ((ROBOT, ("PERMISSION_DENIED", "OK")), (BOSS, ("UNIMPLEMENTED", "OK"))):
            async with channel(served.service.status.grpc_address, token(value), (), aio=True) as opened:
                assert tuple([(await call(opened, method)).name for method in ("/a.B/C", reflection)]) == codes


async def test_two_authorization_values_are_none(checkpoint, tokens: str):
    async with serving(checkpoint, tokens_file=tokens) as served:
        stub = served.channel.unary_unary("/edgeflow.v1.Control/Act", request_serializer=bytes)
        good = ("authorization", f"Bearer {ROBOT}")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub(b"", metadata=(good, good))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("path", "method", "allowed"),
    [
        ("/v1/act", "POST", {ROBOT: 415, BOSS: 415, EYE: 403}),
        ("/metrics", "GET", {ROBOT: 403, BOSS: 200, EYE: 200}),
        ("/docs/", "GET", {ROBOT: 403, BOSS: 200, EYE: 200}),
        ("/docs/api", "GET", {ROBOT: 403, BOSS: 200, EYE: 200}),
        ("/openapi.json", "GET", {ROBOT: 403, BOSS: 200, EYE: 200}),
        ("/v1/models", "GET", {ROBOT: 200, BOSS: 200, EYE: 200}),
        ("/v1/models/demo", "GET", {ROBOT: 200, BOSS: 200, EYE: 200}),
        ("/v1/modelsX", "GET", {ROBOT: 403, BOSS: 404, EYE: 403}),
        ("/nope", "GET", {ROBOT: 403, BOSS: 404, EYE: 403}),
    ],
)
async def test_routes_need_their_role(checkpoint, tokens: str, path: str, method: str, allowed: dict[str, int]):
    async with serving(checkpoint, tokens_file=tokens) as served, httpx.AsyncClient(base_url=served.http) as http:
        for value, status in allowed.items():
            answer = await http.request(method, path, headers={"authorization": f"Bearer {value}"})
            assert answer.status_code == status, (path, value)
        for wrong in (f"bearer {ROBOT}", ROBOT, f"Basic {ROBOT}", "Bearer", f"Bearer {ROBOT} {ROBOT}"):
            assert (await http.request(method, path, headers={"authorization": wrong})).status_code == 401


async def test_an_expired_token(checkpoint, tmp_path: Path):
    past = (datetime.now(timezone.utc) - timedelta(seconds=1)).isoformat()
    file = write_tokens(tmp_path / "t.json", (ROBOT, "arm-1", "control"), **{"arm-1": past})
    async with serving(checkpoint, tokens_file=file) as served, robot_with(served, token(ROBOT)) as robot:
        assert await outcome(robot) == "UNAUTHENTICATED"
        assert served.metric("edgeflow_auth_failures_total", reason="EXPIRED_TOKEN") == robot.streams


@pytest.mark.parametrize(
    "left",
    [(), ((ROBOT, "arm-1", "observe"),)],
    ids=["token-gone", "role-gone"],
)
async def test_a_revoked_token_ends_its_sessions_and_no_others(checkpoint, tokens: str, left: tuple):
    async with (
        serving(checkpoint, tokens_file=tokens) as served,
        robot_with(served, token(ROBOT)) as robot,
        robot_with(served, token(BOSS)) as other,
    ):
        await robot.open()
        await other.open()
        write_tokens(Path(tokens), *left, *ENTRIES[1:])
        await robot.hold("REVOKED")
        code, text = await robot.rest()
        assert (code, "no longer permits" in text) == (grpc.StatusCode.UNAUTHENTICATED, True)
        await other.frame(1)
        await other.action(1)
        async with robot_with(served, token(ROBOT)) as again:
            assert await outcome(again) == ("PERMISSION_DENIED" if left else "UNAUTHENTICATED")


async def test_a_token_that_expires_ends_its_session(checkpoint, tmp_path: Path):
    file = write_tokens(tmp_path / "t.json", (ROBOT, "arm-1", "control"))
    async with serving(checkpoint, tokens_file=file) as served, robot_with(served, token(ROBOT)) as robot:
        await robot.open()
        soon = (datetime.now(timezone.utc) + timedelta(seconds=1)).isoformat()
        write_tokens(tmp_path / "t.json", (ROBOT, "arm-1", "control"), **{"arm-1": soon})
        assert (await robot.rest())[0] is grpc.StatusCode.UNAUTHENTICATED


async def test_a_file_that_became_wrong_changes_nothing(checkpoint, tokens: str):
    async with serving(checkpoint, tokens_file=tokens) as served, robot_with(served, token(ROBOT)) as robot:
        Path(tokens).write_text("[{")
        await eventually(lambda: len(served.events("tokens_kept")) == 1)
        assert await outcome(robot) == "OK"


async def test_a_principal_has_two_sessions_at_most(checkpoint, tokens: str):
    request = pb.ActRequest(open=open_message(), frame=frame_message(1))
    async with serving(checkpoint, tokens_file=tokens) as served, robot_with(served, token(ROBOT)) as first:
        await first.open()
        async with robot_with(served, token(ROBOT)) as second:
            await second.open()
            async with robot_with(served, token(ROBOT)) as third, robot_with(served, token(BOSS)) as other:
                assert await outcome(third) == "RESOURCE_EXHAUSTED"
                assert dict(await third.call.trailing_metadata())["edgeflow-reason"] == "PRINCIPAL_SESSIONS"
                assert await outcome(other) == "OK"
            headers = {"authorization": f"Bearer {ROBOT}"}
            async with httpx.AsyncClient(base_url=served.http, headers=headers) as http:
                body = {
                    "image": "gICA",
                    "format": "rgb8",
                    "width": 1,
                    "height": 1,
                    "instruction": request.open.instruction,
                }
                assert (await http.post("/v1/act", json=body)).status_code == 429
        async with robot_with(served, token(ROBOT)) as fourth:
            assert await outcome(fourth) == "OK"


async def test_the_log_says_who_and_never_what_was_shown(checkpoint, tokens: str):
    async with (
        serving(checkpoint, tokens_file=tokens) as served,
        robot_with(served, token(ROBOT)) as robot,
        robot_with(served, token("guess-guess")) as stranger,
    ):
        await robot.open()
        await outcome(stranger)
        assert [event["principal"] for event in served.events("session_opened")] == ["arm-1"]
        rejections = served.events("auth_failed")
        assert len(rejections) == stranger.streams
        for rejected in rejections:
            assert rejected["reason"] == "UNKNOWN_TOKEN" and rejected["peer"].startswith("ipv4:127.0.0.1")
        assert ROBOT not in served.log and "guess-guess" not in served.log


def test_a_new_token_is_kept_as_a_hash_for_its_owner_only(tmp_path: Path):
    file = tmp_path / "tokens.json"
    first = new_token(str(file), "arm-1", ["control"])
    second = new_token(str(file), "panel", ["observe", "chat"], days=1)
    assert len({first, second}) == 2 and len(first) >= 43
    entries = read_tokens(str(file))
    assert [(entry.principal, [role.value for role in entry.roles]) for entry in entries] == [
        ("arm-1", ["control"]),
        ("panel", ["observe", "chat"]),
    ]
    assert entries[0].expires is None and entries[1].expires is not None
    assert first not in file.read_text() and file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["tokens.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "Invalid JSON"),
        ("{}", "tokens.json: should be a valid array"),
        ([{"principal": "a b", "sha256": "0" * 64, "roles": ["control"]}], "tokens.json.0.principal"),
        ([{"principal": "a\n", "sha256": "0" * 64, "roles": ["control"]}], "tokens.json.0.principal"),
        ([{"principal": "a", "sha256": "secret-token", "roles": ["control"]}], "0.sha256"),
        ([{"principal": "a", "sha256": "0" * 64, "roles": []}], "0.roles"),
        ([{"principal": "a", "sha256": "0" * 64, "roles": ["root"]}], "0.roles.0"),
        ([{"principal": "a", "sha256": "0" * 64, "roles": ["chat"], "expires": "2026-01-01T00:00:00"}], "0.expires"),
        ([{"principal": "a", "sha256": "0" * 64, "roles": ["chat"], "token": "x"}], "0.token"),
    ],
)
def test_a_wrong_file_is_reported_in_one_line_without_its_contents(tmp_path: Path, content: object, message: str):
    file = tmp_path / "tokens.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    file.chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        read_tokens(str(file))
    assert message in caught.value.text and "tokens_file" in caught.value.text and "\n" not in caught.value.text
    assert "secret-token" not in caught.value.text


@pytest.mark.parametrize("mode", [0o644, 0o602, 0o601])
def test_a_file_that_others_can_open_is_rejected(tmp_path: Path, mode: int):
    file = tmp_path / "tokens.json"
    file.write_text("[]")
    file.chmod(mode)
    with pytest.raises(ConfigError, match="chmod o-rwx"):
        read_tokens(str(file))


async def test_a_missing_file_is_a_start_error(checkpoint, tmp_path: Path):
    with pytest.raises(ConfigError, match="tokens_file: cannot read"):
        async with serving(checkpoint, tokens_file=str(tmp_path / "nope.json")):
            raise AssertionError("it must not serve")
