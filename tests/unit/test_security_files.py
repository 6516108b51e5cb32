"""A security directory: its permissions, reloads while a process runs, and consistency."""

import errno
import json
import logging
import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tallybook.core.access import Presented, Role
from tallybook.core.certificate_names import CertificateName
from tallybook.core.errors import AccessDenied, InvalidArgument, InvalidConfig, Unauthenticated
from tallybook.runtime.security import material
from tallybook.runtime.security.authority import Authority, Subject
from tallybook.runtime.security.files import MAX_FILE_BYTES, NAMES, read_files
from tallybook.runtime.security.process_security import open_security, zookeeper_users
from tallybook.runtime.security.tls_contexts import client_context, server_context

DAY = timedelta(days=1)

SERVER = Subject(Role.BOOKIE, "b1", ("127.0.0.1", "localhost"))
CLIENT = Subject(Role.WRITER, "app")


@pytest.fixture
def place(authority, tmp_path) -> Path:
    """The directory of a server."""
    authority.issue(tmp_path / "b1", SERVER, days=1)
    return tmp_path / "b1"


def opened(place: Path, *, serves: bool = True):
    security = open_security(str(place), serves=serves)
    assert security is not None
    return security


def shown(name: str) -> tuple[CertificateName, ...]:
    """The names of a certificate with this one."""
    return (CertificateName.parse(name),)


def test_no_directory_is_no_security():
    assert open_security("", serves=True) is None


def test_a_server_knows_itself_and_those_of_its_authority(place):
    security = opened(place)
    assert set(security.identity.names) == {"127.0.0.1", "localhost", "tallybook://bookie/b1"}
    assert 0.9 < security.days_left() <= 1
    assert security.principal(Presented(shown("tallybook://writer/app"))).name == "writers"
    with pytest.raises(AccessDenied):
        security.principal(Presented(shown("tallybook://stranger/app")))
    with pytest.raises(Unauthenticated):
        security.principal(Presented())


def test_a_client_accepts_no_callers(authority, tmp_path):
    authority.issue(tmp_path / "app", CLIENT, days=1)
    assert not (tmp_path / "app/access.toml").exists()
    with pytest.raises(Unauthenticated):
        opened(tmp_path / "app", serves=False).principal(Presented(shown("tallybook://admin/root")))


def test_a_server_without_rules_does_not_start(authority, tmp_path):
    authority.issue(tmp_path / "app", CLIENT, days=1)
    with pytest.raises(InvalidConfig, match=r"access\.toml"):
        opened(tmp_path / "app")


@pytest.mark.parametrize("name", ["ca.crt", "tls.crt", "tls.key"])
def test_what_is_missing_is_named(place, name):
    (place / name).unlink()
    with pytest.raises(InvalidConfig, match=name.replace(".", r"\.")):
        opened(place)


@pytest.mark.parametrize("name", ["x" * 300, "no\0name"])
def test_a_directory_that_cannot_be_looked_for_is_a_wrong_setting(tmp_path, name):
    with pytest.raises(InvalidConfig, match="security: "):
        open_security(str(tmp_path / name), serves=False)


def test_a_directory_in_one_that_is_closed_to_this_user_is_a_wrong_setting(place, monkeypatch):
    """To root none is, so the answer of the system is put in its place."""

    def refused(path: Path, **_: object) -> os.stat_result:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", refused)
        with pytest.raises(InvalidConfig, match="b1 cannot be read: Permission denied"):
            open_security(str(place), serves=False)


@pytest.mark.parametrize("name", ["nowhere", "ca.crt", "ca.crt/below"])
def test_what_is_no_directory_is_refused_by_name(place, name):
    with pytest.raises(InvalidConfig, match=f"there is no directory .*{name}"):
        open_security(str(place / name), serves=False)


@pytest.mark.parametrize("name", ["tls.key", "token-keys.json"])
@pytest.mark.parametrize("mode", [0o604, 0o602, 0o644])
def test_a_world_readable_secret_is_refused(place, name, mode):
    (place / name).chmod(mode)
    with pytest.raises(InvalidConfig, match="accessible to every user"):
        opened(place)
    (place / name).chmod(0o640)
    opened(place)


@pytest.mark.parametrize("name", ["access.toml", "ca.crt", "tls.crt"])
def test_a_world_writable_file_is_refused(place, name):
    (place / name).chmod(0o646)
    with pytest.raises(InvalidConfig, match=f"every user may change .*{name}"):
        opened(place)
    (place / name).chmod(0o664)
    opened(place)


def test_a_world_writable_directory_is_refused_unless_it_is_sticky(place):
    place.chmod(0o777)
    with pytest.raises(InvalidConfig, match="every user may put files into"):
        opened(place)
    place.chmod(0o1777)
    opened(place)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("name", ["access.toml", "ca.crt", "tls.crt", "tls.key", "token-keys.json"])
def test_a_file_of_another_user_in_a_world_writable_directory_is_refused(place, name):
    (place / name).touch(0o600)
    os.chown(place / name, 12345, 0)
    place.chmod(0o1777)
    with pytest.raises(InvalidConfig, match=rf"{name} belongs to user 12345"):
        opened(place)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["fifo", "directory", "socket"])
def test_what_is_no_file_in_place_of_one_is_refused_and_not_waited_for(place, name, kind):
    path = place / name
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path, 0o600)
    elif kind == "directory":
        path.mkdir(0o700)
    else:
        os.mknod(path, 0o600 | stat.S_IFSOCK)
    with pytest.raises(InvalidConfig, match=f"{name} is not a regular file"):
        opened(place)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "content", [b"", b"\0\xff" * 50, b"-----BEGIN CERTIFICATE-----\nAAAA\n", b"{", b"a = " + b"[" * 5_000]
)
def test_files_that_are_something_else_are_refused_by_name(place, name, content):
    path = place / name
    path.write_bytes(content)
    path.chmod(0o600)
    if name == "access.toml" and not content:
        # A file without rules denies all callers; it is valid.
        with pytest.raises(AccessDenied):
            opened(place).principal(Presented(shown("tallybook://admin/root")))
        return
    with pytest.raises(InvalidConfig, match=name.replace(".", r"\.")):
        opened(place)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_without_end_is_refused(place, name):
    with (place / name).open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    (place / name).chmod(0o600)
    with pytest.raises(InvalidConfig, match="larger"):
        opened(place)


def test_a_key_of_another_certificate_is_refused(authority, place, tmp_path):
    authority.issue(tmp_path / "b2", SERVER, days=1)
    (tmp_path / "b2/tls.key").replace(place / "tls.key")
    with pytest.raises(InvalidConfig, match="not the key"):
        opened(place)


def test_a_certificate_that_has_expired_is_refused(authority, place, monkeypatch):
    monkeypatch.setattr("tallybook.runtime.security.material.datetime", Later)
    with pytest.raises(InvalidConfig, match="not valid now"):
        opened(place)


class Later(datetime):
    """A clock that is ahead by more than the certificate lasts."""

    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) + timedelta(days=2)


def test_the_password_of_zookeeper_is_read_and_must_be_one(place):
    assert zookeeper_users(str(place)).cluster is None
    auth = place / "zookeeper.auth"
    auth.write_text("tally:secret\n")
    auth.chmod(0o600)
    assert zookeeper_users(str(place)).cluster == "tally:secret"
    for wrong in ("tally", ":secret", "tally:", "a b:c"):
        auth.write_text(wrong)
        with pytest.raises(InvalidConfig, match=r"zookeeper\.auth is not") as caught:
            zookeeper_users(str(place))
        assert "secret" not in str(caught.value)


# --- while a process runs ---------------------------------------------------------------------------------------------


def test_a_renewed_certificate_and_new_rules_come_into_force(authority, place, tmp_path):
    security = opened(place)
    first = security.identity
    security.refresh()
    assert security.identity is first, "nothing has changed"
    rules = tmp_path / "authority/access.toml"
    rules.write_text(rules.read_text().replace("tallybook://writer/*", "tallybook://author/*"))
    authority.issue(place, SERVER, days=5)
    security.refresh()
    assert security.days_left() > 4
    with pytest.raises(AccessDenied):
        security.principal(Presented(shown("tallybook://writer/app")))
    assert (security.reloads, security.failures) == (1, 0)


def test_a_pair_of_which_one_half_is_new_is_not_taken_until_the_other_half_is_too(authority, place, tmp_path):
    security = opened(place)
    before = security.identity
    authority.issue(tmp_path / "new", SERVER, days=5)
    for name in ("tls.key", "tls.crt"):
        assert security.identity is before
        (tmp_path / "new" / name).replace(place / name)
        security.refresh()
    assert security.days_left() > 4
    assert security.failures == 1


def pair_of(key, *extensions: x509.ExtensionType) -> tuple[bytes, bytes]:
    """A certificate that signs itself, and its key."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "strange")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + DAY)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return (
        builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def a_name_that_is_none() -> tuple[bytes, bytes]:
    names = x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, b"\xff\xff")
    return pair_of(ec.generate_private_key(ec.SECP256R1()), names)


def a_key_that_is_too_short() -> tuple[bytes, bytes]:
    return pair_of(rsa.generate_private_key(65537, 1024))


@pytest.mark.parametrize("strange", [a_name_that_is_none, a_key_that_is_too_short])
def test_a_certificate_that_tls_cannot_use_leaves_the_one_in_force_and_the_process_goes_on(place, strange):
    security = opened(place)
    before = security.identity
    for name, content in zip(("tls.crt", "tls.key"), strange(), strict=True):
        (place / name).write_bytes(content)
    security.refresh()
    assert (security.identity, security.failures) == (before, 1)


def test_authorities_may_have_comments_in_any_script(place):
    bundle = place / "ca.crt"
    bundle.write_bytes("# Zertifizierungsstelle für München\n".encode() + bundle.read_bytes())
    security = opened(place)
    server_context(security)
    assert client_context(security.identity).cert_store_stats()["x509_ca"] == 1


@pytest.mark.parametrize("name", ["ca.crt", "tls.crt", "tls.key", "access.toml", "token-keys.json"])
def test_files_that_break_leave_what_was_in_force(place, name, caplog):
    security = opened(place)
    good = (place / name).read_bytes()
    (place / name).write_bytes(b"\xff broken")
    for _ in range(3):
        security.refresh()
    assert security.failures == 3
    assert security.principal(Presented(shown("tallybook://writer/app"))).name == "writers"
    assert [record.getMessage() for record in caplog.records] == ["changed security files are not taken"], "said once"
    (place / name).write_bytes(good)
    security.refresh()
    assert security.reloads == 1


def say_otherwise(place) -> None:
    """Take the permissions of writers away, as an operator may have to."""
    rules = place / "access.toml"
    rules.write_text(rules.read_text().replace("tallybook://writer/*", "tallybook://author/*"))


def break_content(path: Path) -> None:
    path.write_bytes(b"\xff broken")


def world_readable(path: Path) -> None:
    path.chmod(0o666)


@pytest.mark.parametrize("damage", [break_content, world_readable, Path.unlink])
@pytest.mark.parametrize("name", ["ca.crt", "tls.crt", "tls.key"])
def test_rights_that_are_taken_away_do_not_wait_for_certificates_that_are_right(place, caplog, name, damage):
    security = opened(place)
    before = security.identity
    damage(place / name)
    say_otherwise(place)
    for _ in range(3):
        security.refresh()
    with pytest.raises(AccessDenied):
        security.principal(Presented(shown("tallybook://writer/app")))
    assert security.identity is before
    assert (security.reloads, security.failures) == (1, 3)
    not_taken = [record for record in caplog.records if record.getMessage() == "changed security files are not taken"]
    assert [record.tallybook_fields["what"] for record in not_taken] == ["certificates"], "said once"


def test_rights_that_are_taken_away_do_not_wait_for_a_certificate_that_has_expired(place, monkeypatch):
    security = opened(place)
    monkeypatch.setattr(material, "datetime", Later)
    say_otherwise(place)
    security.refresh()
    with pytest.raises(AccessDenied):
        security.principal(Presented(shown("tallybook://writer/app")))
    assert (security.reloads, security.failures) == (1, 0)


def test_a_leaked_token_key_is_dropped_and_a_certificate_is_loaded_under_any_rules(authority, place, caplog):
    security = opened(place)
    authority.add_token_key()
    authority.issue(place, SERVER, days=5)
    (place / "access.toml").write_text("[[principal]]")
    kids = json.loads((place / "token-keys.json").read_bytes())["keys"]
    (place / "token-keys.json").write_text(json.dumps({"keys": kids[1:]}))
    caplog.set_level(logging.INFO)
    security.refresh()
    assert security.days_left() > 4
    assert repr(security._material.token_keys) == f"TokenKeys({kids[1]['kid']})"
    assert security.principal(Presented(shown("tallybook://writer/app"))).name == "writers"
    assert [(line.getMessage(), line.tallybook_fields["what"]) for line in caplog.records] == [
        ("changed security files are not taken", "rules"),
        ("security files taken", "certificates, token keys"),
    ]


def test_no_file_of_a_world_writable_directory_is_loaded(place):
    security = opened(place)
    say_otherwise(place)
    place.chmod(0o777)
    security.refresh()
    assert security.principal(Presented(shown("tallybook://writer/app"))).name == "writers"
    assert (security.reloads, security.failures) == (0, 1)
    place.chmod(0o700)
    security.refresh()
    assert (security.reloads, security.failures) == (1, 1)


def test_of_the_password_of_zookeeper_it_is_said_that_it_counts_after_a_restart(place, caplog):
    caplog.set_level(logging.INFO)
    security = opened(place)
    auth = place / "zookeeper.auth"
    auth.touch(mode=0o600)
    auth.write_text("tally:other")
    for _ in range(2):
        security.refresh()
    assert (security.reloads, security.failures) == (0, 0)
    [line] = caplog.records
    assert line.getMessage() == "the password of zookeeper counts from the next start on"
    auth.write_text("tally")
    security.refresh()
    assert security.failures == 1
    assert caplog.records[-1].tallybook_fields["what"] == "zookeeper"
    assert "tally:other" not in caplog.text


def test_rules_that_vanish_do_not_open_the_door(place):
    security = opened(place)
    (place / "access.toml").unlink()
    security.refresh()
    assert security.principal(Presented(shown("tallybook://writer/app"))).name == "writers"
    with pytest.raises(AccessDenied):
        security.principal(Presented(shown("stranger")))


def test_a_directory_that_vanishes_at_any_moment_of_a_reload_leaves_the_old_state_in_force(place, monkeypatch):
    """The reload task is essential for its process, so it must not raise."""
    there, away, rules = Path.stat, place.with_name("away"), place / "access.toml"
    looks = 0
    for at in range(1, 200):
        security = opened(place)
        rules.write_text(f"{rules.read_text()}# {at}\n")
        looks = 0

        def look(path: Path, at: int = at, **how: bool) -> os.stat_result:
            nonlocal looks
            looks += 1
            if looks == at:
                place.rename(away)
            return there(path, **how)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "stat", look)
            security.refresh()
        if looks < at:
            break
        assert security.principal(Presented(shown("tallybook://writer/app"))).name == "writers"
        assert security.identity.names
        assert security.failures or security.reloads
        away.rename(place)
    assert looks > 2 * len(NAMES), "as many moments as there are"


def test_links_that_are_switched_all_at_once_are_followed(authority, place, tmp_path):
    """Replace secrets as Kubernetes does."""
    authority.issue(tmp_path / "data-2", SERVER, days=5)
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "current").symlink_to(place)
    for name in os.listdir(place):
        (linked / name).symlink_to(f"current/{name}")
    security = opened(linked)
    fresh = linked / "fresh"
    fresh.symlink_to(tmp_path / "data-2")
    fresh.replace(linked / "current")
    security.refresh()
    assert security.days_left() > 4


def test_secrets_are_in_no_text_that_these_things_give_of_themselves(place):
    security = opened(place)
    (place / "zookeeper.auth").write_text("tallybook:xyzzy")
    (place / "zookeeper.auth").chmod(0o600)
    files = read_files(str(place))
    material = security._material
    shown = f"{security!r} {security.identity!r} {material!r} {material.token_keys!r} {files!r} {files}"
    for secret in ((place / "tls.key").read_text().splitlines()[1], "PRIVATE KEY", "xyzzy", '"kid"'):
        assert secret not in shown
    assert "tls.key" in repr(files), "what there is may be told"


# --- an authority of one's own ----------------------------------------------------------------------------------------


def test_an_authority_is_made_once_and_found_again(authority, tmp_path):
    with pytest.raises(InvalidConfig, match="already"):
        Authority.create(tmp_path / "authority")
    Authority.open(tmp_path / "authority").issue(tmp_path / "x", SERVER, days=1)
    opened(tmp_path / "x")
    with pytest.raises(InvalidConfig, match="no authority"):
        Authority.open(tmp_path / "x")


def test_signing_keys_are_readable_by_their_owner_only(authority, place, tmp_path):
    for path in (*(tmp_path / "authority").iterdir(), *place.iterdir()):
        public = path.suffix in (".crt", ".toml")
        assert path.stat().st_mode & 0o777 == (0o644 if public else 0o600), path
    assert (tmp_path / "authority").stat().st_mode & 0o777 == 0o700
    kept = {path.name for path in place.iterdir()}
    assert kept == {"ca.crt", "tls.crt", "tls.key", "access.toml", "token-keys.json"}
    assert "d" not in json.loads((place / "token-keys.json").read_text())["keys"][0], "the half that signs stays"


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "../x", "a\nb"])
def test_names_that_could_be_taken_for_others_are_refused(authority, tmp_path, name):
    with pytest.raises(InvalidArgument):
        authority.issue(tmp_path / "x", Subject(Role.WRITER, name), days=1)
    with pytest.raises(InvalidArgument):
        authority.issue(tmp_path / "x", Subject(Role.BOOKIE, "b", ("höst",)), days=1)
    assert not (tmp_path / "x").exists()


def test_certificates_begin_a_little_earlier_for_clocks_that_are_behind(authority, place):
    for path in (place / "tls.crt", place / "ca.crt"):
        begins = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_before_utc
        ago = datetime.now(UTC) - begins
        assert timedelta(minutes=4) < ago < timedelta(minutes=10), path
