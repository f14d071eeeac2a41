"""Who knocks is let in as the web configuration file says now, and a slip in it neither opens nor shuts the door."""

from __future__ import annotations

import base64
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import bcrypt
import pytest

from bench.errors import Misuse
from bench.serve.web_config import WebGuard
from collectors.prometheus.http_server import Server
from tests.collectors.knocking import FakePage, Notices
from tests.support.certificates import Certificate, make_authority, make_certificate
from tests.support.servers import program

TLS = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"


@pytest.fixture
def authority(tmp_path: Path) -> Certificate:
    return make_authority(tmp_path, "authority")


@pytest.fixture
def certificate(tmp_path: Path, authority: Certificate) -> Certificate:
    """The server's, in the files that TLS names."""
    return make_certificate(tmp_path, "server", authority)


def _users(**words: str) -> str:
    hashes = {name: bcrypt.hashpw(word.encode(), bcrypt.gensalt(4)).decode() for name, word in words.items()}
    return "basic_auth_users:\n" + "".join(f"  {name}: {hashed}\n" for name, hashed in hashes.items())


@contextmanager
def _guarded(folder: Path, text: str) -> Iterator[tuple[Server, Notices]]:
    (folder / "web.yml").write_text(text)
    notices = Notices()
    guard = WebGuard(folder / "web.yml", on_notice=notices)
    server = Server(FakePage(), "127.0.0.1", 0, config=guard.config, on_notice=notices)
    try:
        yield server, notices
    finally:
        server.close()


def _knock(server: Server, credentials: str | None = None, tls: ssl.SSLContext | None = None) -> int:
    """The status of the answer."""
    request = urllib.request.Request(server.url)
    if credentials is not None:
        request.add_header("Authorization", "Basic " + base64.b64encode(credentials.encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=30, context=tls) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as refused:
        refused.close()
        return refused.code


def test_an_empty_file_lets_everybody_in(tmp_path: Path) -> None:
    with _guarded(tmp_path, "") as (server, _):
        assert _knock(server) == 200


def test_without_and_with_wrong_credentials_it_stays_shut_and_opens_with_the_right_ones(tmp_path: Path) -> None:
    with _guarded(tmp_path, _users(ann="word")) as (server, _):
        given = (None, "ann:else", "eve:word", ":", "ann:word")
        assert [_knock(server, credentials) for credentials in given] == [401, 401, 401, 401, 200]


@pytest.mark.usefixtures("certificate")
def test_tls_and_passwords_go_together(tmp_path: Path, authority: Certificate) -> None:
    with _guarded(tmp_path, TLS + _users(ann="word")) as (server, _):
        assert server.url.startswith("https://")
        tls = authority.client()
        assert [_knock(server, credentials, tls) for credentials in (None, "ann:else", "ann:word")] == [401, 401, 200]


@pytest.mark.usefixtures("certificate")
@pytest.mark.parametrize(
    ("policy", "opens"), [("RequireAndVerifyClientCert", False), ("VerifyClientCertIfGiven", True)]
)
def test_a_client_without_a_certificate_is_let_in_only_where_it_may_lack_one(
    tmp_path: Path, authority: Certificate, policy: str, opens: bool
) -> None:
    text = TLS + f"  client_auth_type: {policy}\n  client_ca_file: authority.crt\n"
    own = make_certificate(tmp_path, "own", authority)
    with _guarded(tmp_path, text) as (server, _):
        assert _knock(server, tls=authority.client(own)) == 200
        if opens:
            assert _knock(server, tls=authority.client()) == 200
        else:
            # Which of them depends on whether it was writing or reading just then.
            with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
                _knock(server, tls=authority.client())


@pytest.mark.usefixtures("certificate")
def test_a_version_below_the_oldest_is_refused(tmp_path: Path, authority: Certificate) -> None:
    old = authority.client()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with _guarded(tmp_path, TLS + "  min_version: TLS13\n") as (server, _):
        with pytest.raises(OSError, match=r"(?i)protocol.version"):
            _knock(server, tls=old)
        assert _knock(server, tls=authority.client()) == 200


def test_a_changed_password_holds_for_the_next_client(tmp_path: Path) -> None:
    with _guarded(tmp_path, _users(ann="old")) as (server, notices):
        assert [_knock(server, f"ann:{word}") for word in ("old", "newer")] == [200, 401]
        (tmp_path / "web.yml").write_text(_users(ann="newer", bob="x"))
        assert [_knock(server, f"ann:{word}") for word in ("old", "newer")] == [401, 200]
    assert notices == []


def test_a_slip_in_the_file_is_said_once_and_leaves_what_was_in_force(tmp_path: Path) -> None:
    with _guarded(tmp_path, _users(ann="word")) as (server, notices):
        (tmp_path / "web.yml").write_text("basic_auth_userz: {}\n")
        assert [_knock(server, credentials) for credentials in (None, "ann:word")] == [401, 200]
        (tmp_path / "web.yml").unlink()
        assert [_knock(server, credentials) for credentials in (None, "ann:word")] == [401, 200]
        (tmp_path / "web.yml").write_text(_users(bob="word"))
        assert _knock(server, "bob:word") == 200
    assert [notice.split(": ", 1)[1].split(";")[0] for notice in notices] == [
        "basic_auth_userz is not known here",
        "No such file or directory",
    ]
    assert all(notice.endswith("; the previous configuration stays in force") for notice in notices)


def test_a_renewed_certificate_is_shown_when_its_key_is_there_too(tmp_path: Path) -> None:
    old, new = make_authority(tmp_path, "old"), make_authority(tmp_path, "new")
    renewed = make_certificate(tmp_path, "renewed", new)
    make_certificate(tmp_path, "server", old)
    with _guarded(tmp_path, TLS) as (server, notices):
        assert _knock(server, tls=old.client()) == 200
        shutil.copy(renewed.file, tmp_path / "server.crt")
        assert _knock(server, tls=old.client()) == 200
        assert [notice.endswith("; the previous configuration stays in force") for notice in notices] == [True]
        shutil.copy(renewed.key, tmp_path / "server.key")
        assert _knock(server, tls=new.client()) == 200


@pytest.mark.usefixtures("certificate")
def test_a_file_that_no_longer_asks_for_tls_does_not_turn_it_off(tmp_path: Path, authority: Certificate) -> None:
    with _guarded(tmp_path, TLS) as (server, notices):
        (tmp_path / "web.yml").write_text("")
        assert _knock(server, tls=authority.client()) == 200
    assert "encryption cannot be turned on or off while it serves; restart it" in notices[0]


def _lock_with_a_password(key: Path) -> None:
    locked = key.with_suffix(".locked")
    command = ("ec", "-in", str(key), "-aes256", "-passout", "pass:word", "-out", str(locked))
    subprocess.run([program("openssl", "openssl"), *command], check=True, capture_output=True, timeout=60)
    locked.replace(key)


def test_files_that_cannot_be_used_are_named(tmp_path: Path, certificate: Certificate, authority: Certificate) -> None:
    path = tmp_path / "web.yml"

    def refusal(text: str) -> str:
        path.write_text(text)
        with pytest.raises(Misuse) as refused:
            WebGuard(path, on_notice=Notices())
        return str(refused.value)

    asking = TLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: "
    assert f"{tmp_path / 'web.yml'} cannot be used (" in refusal(f"{asking}web.yml\n")
    assert f"{tmp_path / 'absent'} cannot be used (no such file or directory)" in refusal(f"{asking}absent\n")
    shutil.copy(authority.key, tmp_path / "other.key")
    assert "(key values mismatch)" in refusal(TLS.replace("server.key", "other.key"))
    assert "(no such file or directory)" in refusal(TLS.replace("server.crt", "absent"))
    _lock_with_a_password(certificate.key)
    assert "a certificate and its key without a password, in PEM" in refusal(TLS)
