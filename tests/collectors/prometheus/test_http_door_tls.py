"""Over TLS a client is answered where both sides trust each other, and told why not where they do not."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from collectors.prometheus.http_server import ServerConfig
from tests.collectors.knocking import get, serving
from tests.support.certificates import Certificate, make_authority, make_certificate

REFUSALS = (ssl.SSLError, ConnectionError)
"""What a client gets to see of it depends on whether it was writing or reading just then."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Certificate:
    return make_authority(folder, "authority")


@pytest.fixture(scope="module")
def stranger(folder: Path) -> Certificate:
    """An authority that nobody trusts."""
    return make_authority(folder, "stranger")


@pytest.fixture(scope="module")
def certificate(folder: Path, authority: Certificate) -> Certificate:
    return make_certificate(folder, "server", authority)


def test_who_trusts_the_certificate_is_answered_over_tls(authority: Certificate, certificate: Certificate) -> None:
    with serving(config=ServerConfig(tls=certificate.server())) as (server, notices):
        assert server.url == f"https://127.0.0.1:{server.port}/metrics"
        assert get(server.port, tls=authority.client())[::2] == (200, "page for \n")
    assert notices == []


def test_a_client_that_does_not_trust_the_certificate_goes_away_and_that_is_said(
    authority: Certificate, certificate: Certificate, stranger: Certificate
) -> None:
    with serving(config=ServerConfig(tls=certificate.server())) as (server, notices):
        with pytest.raises(ssl.SSLCertVerificationError):
            get(server.port, tls=stranger.client())
        assert get(server.port, tls=authority.client())[0] == 200
    assert notices == ["a client was refused: TLS reports TLSV1_ALERT_UNKNOWN_CA"]


def test_a_client_that_speaks_plain_http_to_tls_is_told_so(certificate: Certificate) -> None:
    with serving(config=ServerConfig(tls=certificate.server())) as (server, _):
        assert get(server.port)[::2] == (400, "this port speaks https\n")


def test_a_client_without_the_certificate_that_is_asked_for_is_not_let_in(
    folder: Path, authority: Certificate, certificate: Certificate, stranger: Certificate
) -> None:
    context = certificate.server()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.file)
    known = make_certificate(folder, "known", authority)
    unknown = make_certificate(folder, "unknown", stranger)
    with serving(config=ServerConfig(tls=context)) as (server, notices):
        for own in (None, unknown):
            with pytest.raises(REFUSALS):
                get(server.port, tls=authority.client(own))
        assert get(server.port, tls=authority.client(known))[0] == 200
    assert notices == [
        "a client was refused: TLS reports PEER_DID_NOT_RETURN_A_CERTIFICATE",
        "a client was refused: TLS reports CERTIFICATE_VERIFY_FAILED",
    ]


def test_a_client_that_is_slow_to_shake_hands_holds_up_no_other(
    authority: Certificate, certificate: Certificate
) -> None:
    with (
        serving(config=ServerConfig(tls=certificate.server())) as (server, _),
        socket.create_connection(("127.0.0.1", server.port)),
    ):
        assert get(server.port, tls=authority.client())[0] == 200
