"""TLS certificates: checked at start and reloaded when their files change."""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from edgeflow.config.sections import TlsConfig
from edgeflow.service.host.files import Stamp, read_file, stamp
from edgeflow.service.observe.log import EventLog
from edgeflow_client.errors import ConfigError

DAY_S = 86_400.0
MAX_FLIGHTS = 8  # per handshake; TLS needs three
EXPIRY_DAYS = 14  # how early to warn
_EXPIRED, _NOT_YET = 10, 9  # OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED, X509_V_ERR_CERT_NOT_YET_VALID


class Tls:
    """TLS of both servers, version 1.2 or later. ConfigError if the files cannot be used.

    A new certificate and key apply to new connections. A new client_ca applies to gRPC at once, to HTTP at the next
    start.
    """

    def __init__(self, config: TlsConfig, log: EventLog, wall: Callable[[], float] = time.time) -> None:
        self._config = config
        self._log = log
        self._wall = wall
        self._stamp = self._stamp_now()
        self._unusable: tuple[Stamp | None, ...] = ()
        _server_context(config)
        self.parts: tuple[bytes, ...] = ()  # certificate chain, key and, if configured, the CA of client certificates
        self._certificates = self._read()
        self._served = self._certificates

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Credentials whose certificates are looked up at every handshake."""
        return grpc.dynamic_ssl_server_credentials(self._certificates, self._changed, bool(self._config.client_ca))

    def refresh(self) -> bool:
        """Reload changed files; True if new ones are in use. Unusable files change nothing."""
        if (now := self._stamp_now()) == self._stamp:
            return False
        try:
            _server_context(self._config)
            certificates = self._read()
        except ConfigError as error:
            if now != self._unusable:
                self._log.event("certificate_kept", text=error.text)
            self._unusable = now  # logged once; the files are read again in case descriptors were lacking
            return False
        self._stamp = now
        self._certificates = certificates
        self._log.event("certificate_read")
        return True

    def _read(self) -> grpc.ServerCertificateConfiguration:
        config = self._config
        key, cert = read_file("tls.key", config.key, private=True), read_file("tls.cert", config.cert)
        if warning := expiry_warning(config, self._wall()):
            self._log.event("warning", text=warning)
        roots = read_file("tls.client_ca", config.client_ca) if config.client_ca else None
        self.parts = (cert, key) if roots is None else (cert, key, roots)
        return grpc.ssl_server_certificate_configuration([(key, cert)], roots)

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """The new certificates, or None if they are unchanged. Called by gRPC's threads."""
        now = self._certificates
        if now is self._served:
            return None
        self._served = now
        return now

    def _stamp_now(self) -> tuple[Stamp | None, ...]:
        config = self._config
        return stamp(*(name for name in (config.cert, config.key, config.client_ca) if name))


def expiry_warning(config: TlsConfig, now_s: float) -> str:
    """A warning if the certificate is expired, not yet valid, or expires soon; "" otherwise. Tested by a handshake."""
    server = _context(config)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    try:
        client.load_verify_locations(Path(config.cert).expanduser())
    except OSError as error:
        raise ConfigError(f"tls.cert: cannot read {config.cert}: {error.strerror}") from None
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        until_s = _handshake(server, client)
    except ssl.SSLCertVerificationError as error:
        words = {_EXPIRED: "has expired", _NOT_YET: "is not valid yet"}
        return f"tls.cert: {config.cert} {words.get(error.verify_code, 'cannot be verified')}"
    days = (until_s - now_s) / DAY_S
    return f"tls.cert: {config.cert} expires in {days:.0f} days" if days < EXPIRY_DAYS else ""


def _server_context(config: TlsConfig) -> ssl.SSLContext:
    """The server's SSL context, with all files checked."""
    read_file("tls.cert", config.cert)
    read_file("tls.key", config.key, private=True)
    context = _context(config)
    if config.client_ca:
        read_file("tls.client_ca", config.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(Path(config.client_ca).expanduser())
        except ssl.SSLError:
            raise ConfigError(f"tls.client_ca: {config.client_ca} contains no PEM certificate") from None
        except OSError as error:
            raise ConfigError(f"tls.client_ca: cannot read {config.client_ca}: {error.strerror}") from None
    return context


def _context(config: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_pair(context, config)
    return context


def _load_pair(context: ssl.SSLContext, config: TlsConfig) -> None:
    def no_password() -> str:
        raise ConfigError(f"tls.key: {config.key} is encrypted: provide an unencrypted key with mode 0600")

    cert, key = Path(config.cert).expanduser(), Path(config.key).expanduser()
    try:
        context.load_cert_chain(cert, key, no_password)
    except ssl.SSLError as error:
        if "MISMATCH" in (error.reason or ""):
            raise ConfigError(f"tls.key: {config.key} does not match the certificate {config.cert}") from None
        raise ConfigError(f"tls.cert, tls.key: cannot parse {config.cert} and {config.key}: both must be PEM") from None
    except OSError as error:
        raise ConfigError(f"tls: cannot read {config.cert} and {config.key}: {error.strerror}") from None


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> float:
    """Perform a handshake in memory; returns the expiry of the server's certificate, in seconds since the epoch."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs, ours = client.wrap_bio(down, up), server.wrap_bio(up, down, server_side=True)
    for _ in range(MAX_FLIGHTS):
        with contextlib.suppress(ssl.SSLWantReadError):
            theirs.do_handshake()
            break
        with contextlib.suppress(ssl.SSLWantReadError):
            ours.do_handshake()
    peer = theirs.getpeercert() or {}
    return ssl.cert_time_to_seconds(str(peer["notAfter"]))
