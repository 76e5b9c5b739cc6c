"""Access tokens: a file stores their hashes, each with a principal and roles."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from enum import Enum
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import TextIO, TypeAlias

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from edgeflow.config.sections import is_loopback
from edgeflow.service.host.files import Stamp, read_file, stamp
from edgeflow.service.observe.log import Log
from edgeflow.service.observe.process_metrics import ProcessMetrics
from edgeflow_client.errors import ConfigError, PermissionDenied, RequestError, Unauthenticated
from edgeflow_client.reasons import Reason

KEY = "tokens_file"
SCHEMES = ("Bearer ", "Api-Key ")  # the second is openpi's
MAX_CREDENTIAL = 512  # characters
TOKEN_BYTES = 32  # of randomness


class Role(str, Enum):
    """The role of a token. control: sessions. observe: metrics, documents. chat: the chat plane. admin: everything."""

    CONTROL = "control"
    OBSERVE = "observe"
    CHAT = "chat"
    ADMIN = "admin"


ANY = frozenset(Role)
CONTROL = frozenset({Role.CONTROL})
OBSERVE = frozenset({Role.OBSERVE})
CHAT = frozenset({Role.CHAT})
ADMIN = frozenset({Role.ADMIN})


@dataclass(frozen=True, slots=True)
class Caller:
    """The origin of a call."""

    peer: str
    principal: str = ""
    token: str = field(default="", repr=False)
    """The hash of the token. principal and token are empty if no tokens are required."""


Networks: TypeAlias = Sequence[IPv4Network | IPv6Network]


def networks_of(texts: Iterable[str]) -> Networks:
    """Networks from their texts, such as 192.0.2.0/24."""
    return [ip_network(each) for each in texts]


def is_within(peer: str, networks: Networks) -> bool:
    """True if an address is in one of the networks."""
    try:
        address = ip_address(peer)
    except ValueError:
        return False
    return any((getattr(address, "ipv4_mapped", None) or address) in each for each in networks)


class TokenEntry(BaseModel):
    """A token: its SHA-256 in hexadecimal, owner, roles and expiry."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    principal: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    roles: list[Role] = Field(min_length=1)
    expires: AwareDatetime | None = None


ENTRIES = TypeAdapter(list[TokenEntry])


class Authenticator:
    """Checks callers against the tokens in force. entries: None = no token is required and every caller is admitted.

    peers: networks whose robots may connect without a token to front ends whose clients cannot send one.
    """

    def __init__(
        self,
        entries: Sequence[TokenEntry] | None,
        metrics: ProcessMetrics,
        log: Log,
        now: Callable[[], datetime] | None = None,
        peers: Sequence[str] = (),
    ) -> None:
        self._entries = entries
        self._peers = networks_of(peers)
        self._metrics = metrics
        self._log = log
        self._now = now or (lambda: datetime.now(timezone.utc))

    def replace(self, entries: Sequence[TokenEntry] | None) -> None:
        """Replace the tokens in force."""
        self._entries = entries

    @property
    def tokens_required(self) -> bool:
        """True if tokens are required."""
        return self._entries is not None

    def check(self, credentials: Sequence[str], roles: frozenset[Role], peer: str) -> Caller:
        """Identify the caller by the `authorization` values (exactly one), who must have one of `roles`.

        Raises Unauthenticated or PermissionDenied, whose reason also labels metrics; nothing is logged here.
        """
        if self._entries is None:
            return Caller(peer)
        entry = self._entry(self._entries, credentials)
        if not roles.union(ADMIN).intersection(entry.roles):
            wanted = " or ".join(sorted(role.value for role in roles | ADMIN))
            raise PermissionDenied(
                f"the token lacks the role {wanted}", field="authorization", reason=Reason.WRONG_ROLE
            )
        return Caller(peer, entry.principal, entry.sha256)

    def count_rejection(self, where: str, peer: str, error: RequestError) -> None:
        """Count and log a rejected call."""
        self._metrics.auth_failures.labels(error.reason).inc()
        self._log.event("auth_failed", where=where, peer=peer, reason=error.reason)

    def may_control(self, caller: Caller) -> bool:
        """True if the session is still permitted: by the token that opened it, or without one by its network."""
        return self._may(caller, CONTROL) or (not caller.token and is_within(caller.peer, self._peers))

    def may_operate(self, caller: Caller) -> bool:
        """True if an operator may act on sessions: with the role admin, or without tokens from this machine."""
        return self._may(caller, ADMIN) and (self.tokens_required or is_loopback(caller.peer))

    def may_observe(self, caller: Caller) -> bool:
        """True if the token of a live page still permits it."""
        return self._may(caller, OBSERVE)

    def may_chat(self, caller: Caller) -> bool:
        """True if the token of a chat request still permits it."""
        return self._may(caller, CHAT)

    def _may(self, caller: Caller, roles: frozenset[Role]) -> bool:
        if self._entries is None:
            return True
        mine = (entry for entry in self._entries if entry.sha256 == caller.token and not self._expired(entry))
        return any(roles.union(ADMIN).intersection(entry.roles) for entry in mine)

    def _entry(self, entries: Sequence[TokenEntry], credentials: Sequence[str]) -> TokenEntry:
        if not credentials:
            raise Unauthenticated(
                "a token is required: send the header authorization: Bearer TOKEN",
                field="authorization",
                reason=Reason.NO_TOKEN,
            )
        found = None
        token = shown_token(credentials[0])
        if len(credentials) == 1 and token and len(credentials[0]) <= MAX_CREDENTIAL:
            shown = digest(token)
            for entry in entries:  # all of them, so that timing reveals nothing
                if hmac.compare_digest(shown, entry.sha256):
                    found = entry
        if found is None:
            raise Unauthenticated("unknown token", field="authorization", reason=Reason.UNKNOWN_TOKEN)
        if self._expired(found):
            raise Unauthenticated("the token has expired", field="authorization", reason=Reason.EXPIRED_TOKEN)
        return found

    def _expired(self, entry: TokenEntry) -> bool:
        return entry.expires is not None and entry.expires <= self._now()


class TokensFile:
    """The tokens file, which only control reads. name: "" = no tokens are required. ConfigError if it is unusable."""

    def __init__(self, name: str, log: Log) -> None:
        self._name = name
        self._log = log
        self._stamp = stamp(name) if name else ()
        self._unusable: tuple[Stamp | None, ...] = ()
        self.entries: list[TokenEntry] | None = read_tokens(name) if name else None

    def refresh(self) -> bool:
        """Reload the file if it changed; True if there are new tokens. An invalid or missing file changes nothing."""
        if not self._name or (now := stamp(self._name)) == self._stamp:
            return False
        try:
            self.entries = read_tokens(self._name)
        except ConfigError as error:
            if now != self._unusable:
                self._log.event("tokens_kept", text=error.text)
            self._unusable = now  # logged once; the file is read again in case descriptors were lacking
            return False
        self._stamp = now
        self._log.event("tokens_read", tokens=len(self.entries))
        return True


def digest(token: str) -> str:
    """The hash of a token, as stored in the file."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def shown_token(credentials: str) -> str:
    """The token in the header `authorization`; "" without one."""
    scheme = next((each for each in SCHEMES if credentials.startswith(each)), "")
    return credentials.removeprefix(scheme).strip() if scheme else ""


def write_entries(entries: Sequence[TokenEntry]) -> bytes:
    """Entries for another process, which reads them by ENTRIES."""
    return ENTRIES.dump_json(list(entries))


def read_tokens(name: str) -> list[TokenEntry]:
    """Read a tokens file; ConfigError describes the fault."""
    data = read_file(KEY, name, private=True)
    try:
        return ENTRIES.validate_json(data)
    except ValidationError as error:
        detail = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join([name, *(str(part) for part in detail["loc"])])
        raise ConfigError(f"{KEY}: {where}: {detail['msg'].removeprefix('Input ')}") from None


def new_token(name: str, principal: str, roles: Sequence[str], days: float | None = None) -> str:
    """Create a token and add its hash to the file; the token itself is stored nowhere. ConfigError in one line."""
    path = Path(name).expanduser()
    entries = read_tokens(name) if path.exists() else []
    token = secrets.token_urlsafe(TOKEN_BYTES)
    expires = (datetime.now(timezone.utc) + timedelta(days=days)).isoformat() if days is not None else None
    values = {"principal": principal, "sha256": digest(token), "roles": list(roles), "expires": expires}
    try:
        entries.append(TokenEntry.model_validate_json(json.dumps(values)))
    except ValidationError as error:
        detail = error.errors(include_input=False, include_url=False, include_context=False)[0]
        raise ConfigError(f"{detail['loc'][0]}: {detail['msg']}") from None
    _replace(path, entries)
    return token


@contextmanager
def secret_file(path: Path) -> Iterator[TextIO]:
    """A new file that only its owner can read; it is removed if writing fails."""
    try:
        with open(path, "x", opener=_private) as file:
            yield file
    except FileExistsError:
        raise ConfigError(f"out: {path} exists already") from None
    except OSError as error:
        path.unlink(missing_ok=True)
        raise ConfigError(f"out: cannot write {path}: {error.strerror}") from None
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _replace(path: Path, entries: Sequence[TokenEntry]) -> None:
    """Replace the file atomically, readable by its owner only."""
    text = json.dumps([entry.model_dump(mode="json", exclude_none=True) for entry in entries], indent=2)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(partial, "x", opener=_private) as stream:
            stream.write(text + "\n")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigError(f"{KEY}: cannot write {path}: {error.strerror}") from None


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)
