"""A web configuration file is understood as Prometheus's own exporters do, and refused where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.errors import Misuse
from bench.serve.web_config import TlsConfig, WebConfig, read_web_config

HASH = "$2y$10$mDwo.lAisC94iLAyP81MCesa29IzH37oigHC/42V2pdJlUprsJPze"
TLS = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"
WHOLE = f"""
tls_server_config:
  cert_file: /etc/web/server.crt
  key_file: server.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: clients/authority.crt
  min_version: TLS13
  max_version: TLS13
http_server_config:
  http2: true
  headers:
    Strict-Transport-Security: max-age=3600
    X-Frame-Options: deny
    X-XSS-Protection:
basic_auth_users:
  ann: {HASH}
  bob: '{HASH.replace("$2y$10$", "$2b$04$")}'
"""


def _read(folder: Path, text: str) -> WebConfig:
    path = folder / "web.yml"
    path.write_text(text)
    return read_web_config(path)


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    assert _read(tmp_path, WHOLE) == WebConfig(
        tls=TlsConfig(
            certificate=Path("/etc/web/server.crt"),
            key=tmp_path / "server.key",
            client_check="required",
            client_ca=tmp_path / "clients/authority.crt",
            oldest="TLS13",
            newest="TLS13",
        ),
        password_hashes={"ann": HASH, "bob": HASH.replace("$2y$10$", "$2b$04$")},
        headers={"Strict-Transport-Security": "max-age=3600", "X-Frame-Options": "deny"},
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "tls_server_config:\nbasic_auth_users: {}\n"])
def test_an_empty_file_asks_for_nothing(tmp_path: Path, text: str) -> None:
    assert _read(tmp_path, text) == WebConfig()


def test_what_a_file_leaves_open_is_as_safe_as_prometheus_has_it(tmp_path: Path) -> None:
    tls = _read(tmp_path, TLS).tls
    assert tls is not None
    assert (tls.client_check, tls.client_ca, tls.oldest, tls.newest) == ("none", None, "TLS12", "TLS13")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("basic_auth_user: {}", "basic_auth_user is not known here; it may be tls_server_config, http_server_config,"),
        (TLS + "  cipher_suites: []", "tls_server_config.cipher_suites is not known here; it may be cert_file,"),
        (TLS + "  client_allowed_sans: [a]", "tls_server_config.client_allowed_sans is not known here"),
        (TLS + "  min_version: TLS11", 'tls_server_config.min_version is "TLS11"; it may be TLS12, TLS13'),
        (
            TLS + "  min_version: TLS13\n  max_version: TLS12",
            "tls_server_config.min_version is TLS13, above max_version, TLS12; swap them",
        ),
        (
            TLS + "  client_auth_type: RequireAnyClientCert",
            'tls_server_config.client_auth_type is "RequireAnyClientCert"; it may be NoClientCert,',
        ),
        (TLS + "  client_ca_file: ca.crt", "tls_server_config.client_ca_file and a client_auth_type that verifies go"),
        (TLS + "  client_auth_type: RequireAndVerifyClientCert", "tls_server_config.client_ca_file and a client_auth"),
        ("tls_server_config: {key_file: k}", "tls_server_config.cert_file is missing; name the PEM file of the"),
        ("tls_server_config: {min_version: TLS13}", "tls_server_config.cert_file is missing"),
        ("tls_server_config: {cert_file: 5, key_file: k}", "tls_server_config.cert_file is 5, which is not text"),
        (f"tls_server_config: {{cert_file: 0x{'f' * 5000}}}", "tls_server_config.cert_file is a long number, which is"),
        (f"basic_auth_users:\n  ? 0x{'f' * 5000}\n  : x", "basic_auth_users: key a long number is not text; quote it"),
        ("tls_server_config: {cert_file: [a]}", "tls_server_config.cert_file is a list or table; it must be text"),
        (
            'tls_server_config: {cert_file: "a\\0b"}',
            'tls_server_config.cert_file is "a\\u0000b"; it must be one line without control characters',
        ),
        ("tls_server_config: yes", "tls_server_config must be a table of keys and values"),
        ("- a\n- b", "the file must be a table of keys and values"),
        ("http_server_config: {http2: maybe}", "http_server_config.http2 must be true or false"),
        (
            "http_server_config: {headers: {X-Mood: good}}",
            "http_server_config.headers.X-Mood is not known here; it may be Content-Security-Policy,",
        ),
        (
            "http_server_config: {headers: {X-Frame-Options: allow}}",
            'http_server_config.headers.X-Frame-Options is "allow"; it may be deny, sameorigin',
        ),
        (
            'http_server_config: {headers: {X-XSS-Protection: "1\\r\\nSet-Cookie: a"}}',
            'http_server_config.headers.X-XSS-Protection is "1\\r\\nSet-Cookie: a"; it must be one line of ASCII',
        ),
        ("basic_auth_users: {12: x}", "basic_auth_users: key 12 is not text; quote it"),
        (f"basic_auth_users: {{'a:b': {HASH}}}", 'basic_auth_users: "a:b" is not a name'),
        ("tls_server_config: {", "line 1: "),
        (f"basic_auth_users:\n  ann: {HASH}\n  ann: {HASH}", 'line 3: key "ann" is given twice'),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(Misuse) as refused:
        _read(tmp_path, text)
    assert str(refused.value).startswith(f"{tmp_path / 'web.yml'}: {said}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("secret", ["secretword", HASH[:-1], HASH.replace("$10$", "$03$"), HASH.replace("$2y$", "$1$")])
def test_what_is_no_bcrypt_hash_is_refused_and_not_shown(tmp_path: Path, secret: str) -> None:
    with pytest.raises(Misuse, match=r"basic_auth_users\.ann is not a bcrypt hash; make one with `htpasswd") as refused:
        _read(tmp_path, f"basic_auth_users: {{ann: {secret}}}")
    assert secret not in str(refused.value)


def test_a_line_that_is_no_yaml_is_named_and_not_shown(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"line 2: ") as refused:
        _read(tmp_path, "basic_auth_users:\n  ann: secretword: [\n")
    assert "secretword" not in str(refused.value)


@pytest.mark.parametrize(
    "value",
    [
        *("9" * 5000, "2001-99-99", "0000-01-01", "2001-01-01T00:00:00+99:99", f"1{':1' * 300}.5", '"\\UFFFFFFFF"'),
        *("!!float x", "!!int x", '!!int ""', "!!bool x", "!!timestamp x", "!!map x"),
    ],
)
def test_a_value_that_its_kind_does_not_allow_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(Misuse, match=r"web\.yml: a value cannot be read, for example .*; quote it$"):
        _read(tmp_path, f"a: {value}")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "web.yml").write_bytes(b"\x00\xff\xfe\x01")
    with pytest.raises(Misuse, match=r"web\.yml: is not text; it must be YAML in UTF-8"):
        read_web_config(tmp_path / "web.yml")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"absent\.yml: No such file or directory; name a file that this user may read"):
        read_web_config(tmp_path / "absent.yml")
