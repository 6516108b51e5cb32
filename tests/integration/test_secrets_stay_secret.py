"""No secret of a cluster appears in logs, answers, metrics, output or arguments of its processes.

A bookie, a gateway, a console, an offloader and a repair run with security and the most detailed logs. Every kind of
secret is used successfully, and also presented where it is refused. Then all output of the processes is searched for
each of them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import ssl
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import grpc.aio
import jwt
import pytest

from tallybook.client.client import Client
from tallybook.core.access import Role
from tallybook.core.keys import digest_key, ledger_key
from tallybook.core.settings import ClientSettings
from tallybook.gateway.console.routes import endpoints
from tallybook.proto import ledger_pb2, ledger_pb2_grpc, stream_pb2, stream_pb2_grpc
from tallybook.runtime.security.archive_keys import add_key
from tallybook.runtime.security.authority import Authority, Subject

from .conftest import PATIENCE_SECONDS, SMALL, TALLYBOOK, environment, wait_until

KINDS = ("bookie", "gateway", "console", "offload", "repair")
RULES = """
[[principal]]
name = "root"
roles = ["admin"]
tokens = ["root"]

[[principal]]
name = "app"
roles = ["writer"]
tokens = ["app"]
"""
PASSWORD, WRONG_PASSWORD = b"geheimnis-4711", b"geheimnis-4712"
ZOOKEEPER_PASSWORD = "zookeeper-4713"
OBJECT_STORE_KEY = "object-store-4714"
NO_TOKEN = "no-token-at-all-4715"
SHARED = b"a secret of 32 bytes or more 4716"
OTHER = b"another secret of that length 4717"
ENTRIES = [b"a", b"b", b"c"]
ONE_COPY = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}


def forms(secret: bytes) -> set[bytes]:
    """A secret as it is, and as programs write it down."""
    text = secret.decode("latin-1")
    return {
        secret,
        secret.hex().encode(),
        base64.b64encode(secret).rstrip(b"="),
        base64.urlsafe_b64encode(secret).rstrip(b"="),
        repr(secret)[2:-1].encode(),
        json.dumps(text)[1:-1].encode(),
        quote(secret).encode(),
    }


class Secrets:
    """All secrets, each under a name that may be shown."""

    def __init__(self) -> None:
        self._known: dict[str, set[bytes]] = {}

    def add(self, name: str, secret: bytes | str) -> None:
        raw = secret.encode() if isinstance(secret, str) else secret
        assert len(raw) > 11, "something shorter may be anywhere by chance"
        self._known[name] = forms(raw)

    def add_token(self, name: str, token: str) -> None:
        """Add the parts of a token without its header, which is the same for all tokens of a key."""
        for part in token.split(".")[1:]:
            self.add(f"{name} {part[:3]}", part)

    def add_private_key(self, name: str, file: Path) -> None:
        for number, line in enumerate(file.read_text().splitlines()[1:-1]):
            self.add(f"{name}, line {number}", line)

    def shown_in(self, text: bytes) -> set[str]:
        """Names of those that can be read there."""
        return {name for name, known in self._known.items() if any(form in text for form in known)}


class Running:
    """One process, and all that it says."""

    def __init__(self, place: Path, kind: str, words: list[str], env: Mapping[str, str]) -> None:
        self.out, self.err = place / f"{kind}.out", place / f"{kind}.log"
        words = [kind, "run", "--log-level", "debug", "--json", *words]
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen([*TALLYBOOK, *words], env=environment(**env), stdout=out, stderr=err)

    def first(self, file: Path, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first line of JSON that fits, once it is there."""

        def found() -> dict[str, Any] | None:
            assert self.process.poll() is None, file.read_text()
            lines = file.read_text().splitlines(keepends=True)
            told = (json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n"))
            return next(filter(fits, told), None)

        return wait_until(found, f"{file.name} has its line")

    def logged(self, event: str) -> dict[str, Any]:
        return self.first(self.err, lambda line: line.get("event") == event)

    def arguments(self) -> bytes:
        """The command line, which every user of the machine can see."""
        arguments = Path(f"/proc/{self.process.pid}/cmdline").read_bytes()
        assert b"debug" in arguments
        return arguments

    def said(self) -> dict[str, bytes]:
        """Stop it, and return all of its output."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_SECONDS) == 0, self.err.read_text()
        return {"its output": self.out.read_bytes(), "its log": self.err.read_bytes()}


class Secured:
    """Five processes of a cluster, requests to them, and their output so far."""

    def __init__(self, place: Path, env: Mapping[str, str], secrets: Secrets) -> None:
        self.place, self.env, self.secrets = place, env, secrets
        self.metadata = f"sqlite://{place}/metadata.db"
        self.running: dict[str, Running] = {}
        self.http: dict[str, str] = {}
        self.told: dict[str, bytes] = {}
        self.context = ssl.create_default_context(cafile=place / "server/ca.crt")

    def start(self, kind: str, *words: str) -> Running:
        made = Running(self.place, kind, ["--metadata", self.metadata, *words], self.env)
        self.running[kind] = made
        return made

    def note(self, what: str, text: bytes | str) -> None:
        self.told[f"{len(self.told)}: {what}"] = text.encode() if isinstance(text, str) else text

    async def ask(self, kind: str, path: str, token: str = "", *, method: str = "GET", body: bytes = b"") -> int:
        """The status of an answer over HTTP; the rest of it is noted."""
        head = {"host": "127.0.0.1", "connection": "close", "content-length": str(len(body))}
        if token:
            head["authorization"] = f"Bearer {token}"
        if method != "GET":
            head["content-type"] = "application/json"
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        host, _, port = self.http[kind].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=self.context)
        writer.write(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        answer = await reader.read()
        writer.close()
        self.note(f"{kind} to {method} {path[:40]}", answer)
        return int(answer.split()[1])

    async def refused(self, call: Awaitable[object], code: grpc.StatusCode) -> None:
        """A call that must fail so; what is said of it is noted."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        error = caught.value
        assert error.code() is code
        self.note(f"the gateway says {code.name}", f"{error.details()} {list(error.trailing_metadata() or ())}")


def token(subject: str, key: bytes) -> str:
    """One that is signed with a secret which the servers have, too, or claims so."""
    claims = {"sub": subject, "aud": "tallybook", "exp": datetime.now(UTC) + timedelta(hours=1)}
    return jwt.encode(claims, key, algorithm="HS256", headers={"kid": "shared"})


def security_directory(authority: Authority, place: Path) -> Path:
    """The security directory of all processes of the cluster, with every kind of secret."""
    made, root = place / "server", place / "authority"
    rules, keys = root / "access.toml", root / "token-keys.json"
    rules.write_text(rules.read_text() + RULES)
    shared = base64.urlsafe_b64encode(SHARED).rstrip(b"=").decode()
    known = json.loads(keys.read_text())["keys"]
    keys.write_text(json.dumps({"keys": [*known, {"kty": "oct", "kid": "shared", "alg": "HS256", "k": shared}]}))
    authority.issue(made, Subject(Role.BOOKIE, "server", ("127.0.0.1",)), days=1)
    (made / "zookeeper.auth").touch(mode=0o600)
    (made / "zookeeper.auth").write_text(f"tally:{ZOOKEEPER_PASSWORD}")
    return made


@contextmanager
def stopped_in_the_end(cluster: Secured) -> Iterator[None]:
    try:
        yield
    finally:
        for running in cluster.running.values():
            running.process.kill()
            running.process.wait()


@pytest.fixture
def cluster(authority: Authority, tmp_path: Path, s3_server: str) -> Iterator[Secured]:
    """All five processes, ready, and their secrets."""
    server = security_directory(authority, tmp_path)
    archive_keys = tmp_path / "archive-keys.json"
    add_key(archive_keys)
    secrets = Secrets()
    secrets.add_private_key("the key of the servers", server / "tls.key")
    secrets.add_private_key("the key of the authority", tmp_path / "authority/ca.key")
    secrets.add("the secret of tokens", SHARED)
    secrets.add("the password of ZooKeeper", ZOOKEEPER_PASSWORD)
    secrets.add("the key of the object store", OBJECT_STORE_KEY)
    for encoded in json.loads(archive_keys.read_text())["keys"].values():
        secrets.add("the key of the archive", base64.b64decode(encoded))
    env = {
        "TALLYBOOK_SECURITY": str(server), "TALLYBOOK_TOKEN_LISTEN": "127.0.0.1:0",
        "TALLYBOOK_ARCHIVE_KEYS": str(archive_keys), "TALLYBOOK_CLIENT__ARCHIVE_KEYS": str(archive_keys),
        "AWS_ENDPOINT_URL": s3_server, "AWS_REGION": "us-east-1", "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ACCESS_KEY_ID": "tallybook", "AWS_SECRET_ACCESS_KEY": OBJECT_STORE_KEY,
    }  # fmt: skip
    made = Secured(tmp_path, env, secrets)
    with ExitStack() as undo:
        undo.enter_context(stopped_in_the_end(made))
        bookie = made.start("bookie", "--data", str(tmp_path / "b1"), "--id", "b1", *SMALL)
        bookie.logged("ready")
        made.http["bookie"] = f"127.0.0.1:{json.loads((tmp_path / 'b1/run.json').read_text())['ports']['http']}"
        soon = [f"--set={name}=0" for name in ("max_set_wait_s", "deletion_lag_s")]
        offload = made.start("offload", "--archive", "s3://bucket/secrets", "--set=interval_s=1", *soon)
        gateway, console, repair = (made.start(kind) for kind in ("gateway", "console", "repair"))
        made.http["gateway"] = gateway.logged("ready")["http_address"]
        made.http["console"] = console.first(console.out, lambda line: "ready" in line)["ready"][len("https://") : -1]
        made.http["offload"] = offload.logged("serving")["http_address"]
        made.http["repair"] = repair.logged("serving")["http_address"]
        yield made


async def written(append: Callable[[Any], Any], **more: Any) -> int:
    """The ledger that an Append stream has made, with three entries."""
    create = ledger_pb2.CreateRequest(**ONE_COPY, **more)
    opened = ledger_pb2.AppendRequest(open=ledger_pb2.AppendOpen(create=create), payloads=ENTRIES)
    replies = append([opened, ledger_pb2.AppendRequest(close=ledger_pb2.AppendClose())])
    return [reply async for reply in replies][-1].closed.ledger_id


async def read(ledgers: Any, known: Any, **what: Any) -> list[bytes]:
    replies = ledgers.Read(ledger_pb2.ReadRequest(**what), metadata=known)
    return [payload async for reply in replies for payload in reply.payloads]


async def use_the_gateway(cluster: Secured, own: str, root: str, wrong: list[str]) -> int:
    """A ledger with a password, one in the archive, a stream, and refused callers; returns the first ledger."""
    address = cluster.running["gateway"].logged("ready")["token_address"]
    trusted = grpc.ssl_channel_credentials((cluster.place / "server/ca.crt").read_bytes())
    known = (("authorization", f"Bearer {own}"),)
    async with grpc.aio.secure_channel(address, trusted) as channel:
        ledgers, streams = ledger_pb2_grpc.LedgerServiceStub(channel), stream_pb2_grpc.StreamServiceStub(channel)

        def append(requests: Any) -> Any:
            return ledgers.Append(requests, metadata=known)

        locked = await written(append, password=PASSWORD, digest=ledger_pb2.DIGEST_HMAC_SHA256)
        plain = await written(append)
        assert await read(ledgers, known, ledger_id=locked, password=PASSWORD) == ENTRIES
        for method in ("Recover", "Close", "Delete"):
            request = getattr(ledger_pb2, f"{method}Request")(ledger_id=locked, password=WRONG_PASSWORD)
            await cluster.refused(getattr(ledgers, method)(request, metadata=known), grpc.StatusCode.PERMISSION_DENIED)
        for other in wrong:
            call = ledgers.List(ledger_pb2.ListRequest(), metadata=(("authorization", f"Bearer {other}"),))
            await cluster.refused(call, grpc.StatusCode.UNAUTHENTICATED)
        await until_archived(cluster, root)
        assert await read(ledgers, known, ledger_id=plain) == ENTRIES, "with the keys of the archive"
        policy = stream_pb2.StreamPolicy(**ONE_COPY)
        await streams.Create(stream_pb2.CreateStreamRequest(name="s", policy=policy), metadata=known)
        for _ in range(2):  # the second time there is a line of the level debug
            await streams.End(stream_pb2.EndStreamRequest(name="s"), metadata=known)
    return locked


async def until_archived(cluster: Secured, token: str) -> None:
    """Wait until both ledgers are in the object store, and nowhere else."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            assert await cluster.ask("offload", "/metrics", token) == 200
            if b"\ntallybook_offload_ledgers_released_total 2" in cluster.told.popitem()[1]:
                return
            await asyncio.sleep(0.05)


async def use_http(cluster: Secured, good: str, wrong: list[str], locked: int) -> None:
    """Everything that there is to be read of each process, and requests that are refused because of a secret."""
    for kind in KINDS:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert await cluster.ask(kind, path, good) == 200
        for other in wrong:
            assert await cluster.ask(kind, "/metrics", other) == 401
        assert await cluster.ask(kind, f"/{good}", good) == 404
        assert await cluster.ask(kind, f"/{quote(PASSWORD)}?token={good}") == 404
    for path in ("state", "gc", "config"):
        assert await cluster.ask("bookie", f"/api/v1/bookie/{path}", good) == 200
    anything = (type("Any", (), {"__getattr__": lambda self, name: name})() for _ in range(4))
    places = {"{bookie}": "b1", "{ledger}": str(locked), "{entry}": "0", "{namespace}": "default", "{stream}": "s"}
    for endpoint in endpoints(*anything):
        path = endpoint.path
        for name, value in places.items():
            path = path.replace(name, value)
        if endpoint.method == "GET":
            assert await cluster.ask("console", path, good) in {200, 404}, path
            assert await cluster.ask("console", f"{path}?token={good}", good) == 400
    assert await cluster.ask("console", "/api/v1/config", good) == 200
    path = f"/api/v1/ledgers/{locked}"
    for body, status in (
        ({"password": WRONG_PASSWORD.decode()}, 409),
        ({"passwort": PASSWORD.decode()}, 400),
        ({"password": [PASSWORD.decode()]}, 400),
        ({"password": PASSWORD.decode()}, 200),
    ):
        assert await cluster.ask("console", path, good, method="DELETE", body=json.dumps(body).encode()) == status
    twice = b'{"password": "%s", "password": ' % PASSWORD
    assert await cluster.ask("console", path, good, method="DELETE", body=twice) == 400


async def derived(cluster: Secured, ledger_id: int) -> None:
    """Add the keys that follow from the password: a bookie is shown the one, entries are signed with the other."""
    settings = ClientSettings(security=str(cluster.place / "server"))
    async with Client(cluster.metadata, settings) as client:
        salt = (await client.ledger_metadata(ledger_id)).key_salt
    assert salt
    cluster.secrets.add("the key of the ledger", ledger_key(PASSWORD, salt))
    cluster.secrets.add("the key of its digests", digest_key(PASSWORD, salt))


def printed(cluster: Secured, cli: Any) -> None:
    """The settings printed by each kind of process, with metadata in ZooKeeper."""
    for kind in KINDS:
        more = ["--data", cluster.place / "none"] if kind == "bookie" else []
        env = {**cluster.env, "TALLYBOOK_METADATA": "zks://127.0.0.1:1/tallybook"}
        found = cli.run(kind, "run", "--print-config", *more, **env)
        assert found.json["security"] == cluster.env["TALLYBOOK_SECURITY"]
        cluster.note(f"{kind} run --print-config", found.out + found.err.encode())


async def test_no_secret_is_in_what_processes_log_answer_count_print_or_were_started_with(cluster, authority, cli):
    root, app = authority.token("root", lifetime=timedelta(hours=1)), token("app", SHARED)
    wrong = [token("app", OTHER), authority.token("root", lifetime=timedelta(hours=-1)), NO_TOKEN]
    for number, each in enumerate((root, app, *wrong[:2])):
        cluster.secrets.add_token(f"token {number}", each)
    cluster.secrets.add("what is no token", NO_TOKEN)
    cluster.secrets.add("a password", PASSWORD)
    cluster.secrets.add("a wrong password", WRONG_PASSWORD)

    locked = await use_the_gateway(cluster, app, root, wrong)
    await derived(cluster, locked)
    await use_http(cluster, root, wrong, locked)
    printed(cluster, cli)
    for kind, running in cluster.running.items():
        cluster.note(f"{kind}, its arguments", running.arguments())
    for kind, running in reversed(cluster.running.items()):
        for what, text in running.said().items():
            cluster.note(f"{kind}, {what}", text)

    for kind in KINDS:
        refusals = [text for what, text in cluster.told.items() if what.endswith(f"{kind}, its log")]
        assert b'"refused"' in refusals[0], "it has met what it must not show"
    (log,) = (text for what, text in cluster.told.items() if what.endswith("gateway, its log"))
    assert b'"level": "debug"' in log
    assert {what: shown for what, text in cluster.told.items() if (shown := cluster.secrets.shown_in(text))} == {}


def test_a_secret_is_found_in_any_encoding():
    secrets = Secrets()
    secrets.add("one", b"\x00\xffsecret <&>")
    for shown in (b"\x00\xffsecret <&>", b"00ff736563726574203c263e", b"AP9zZWNyZXQgPCY+", b"AP9zZWNyZXQgPCY-",
                  b"\\x00\\xffsecret <&>", b"\\u0000\\u00ffsecret <&>", b"%00%FFsecret%20%3C%26%3E"):  # fmt: skip
        assert secrets.shown_in(b"before " + shown + b" after") == {"one"}
    assert secrets.shown_in(b"\x00\xffsecret") == set()
