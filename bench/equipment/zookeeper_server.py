"""A real ZooKeeper server on this machine, for tests and benchmarks.

PySpark bundles the jars of ZooKeeper, so nothing has to be downloaded: Java and the ``testdata`` requirements are
enough. The server listens on a free loopback port, has its data in a directory of the caller, and ends with ``stop`` or
``kill``.
"""

from __future__ import annotations

import importlib.util
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from .programs import free_port

START_ATTEMPTS: Final = 3
"""Another process may take the free port before Java binds it."""
START_POLLS: Final = 600
POLL_SECONDS: Final = 0.1
STOP_SECONDS: Final = 10.0
STOP_POLLS: Final = 500
STOP_POLL_SECONDS: Final = 0.01
"""Polling for stopped threads: a signal reaches the threads of a process one by one."""
MAX_SESSION_MS: Final = 60_000
"""Default would be 20 ticks."""

_JVM_OPTIONS: Final = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    # Only the client compiler: the server starts twice as fast, and tests are too short for the server compiler.
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.admin.enableServer=false",
    "-Dzookeeper.preAllocSize=1024",
)


def _stopped(status: Path) -> bool:
    """Whether a thread is stopped, or has ended."""
    try:
        return "State:\tT" in status.read_text()
    except OSError:
        return True


class ZooKeeperNotStarted(Exception):
    """The server could not be started; the message says what is missing or what it printed."""


class ZooKeeperServer:
    """One stand-alone server. Blocking; a context manager that starts and stops it.

    Args:
        directory: data, configuration and log; kept when the server stops, so that it can start again.
        tick_ms: ZooKeeper's tick time. The shortest session is two ticks.
        durable: fsync each write, as in production.
        security: directory of certificates for TLS on a second port; ``None``: no TLS.
    """

    def __init__(
        self, directory: Path, *, tick_ms: int = 200, durable: bool = False, security: Path | None = None
    ) -> None:
        self._directory = directory
        self._tick_ms = tick_ms
        self._durable = durable
        self._security = security
        self._port = self._secure_port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """``host:port`` for clients; the same after a restart."""
        return f"127.0.0.1:{self._port}"

    @property
    def secure_address(self) -> str:
        """The same for clients that speak TLS."""
        return f"127.0.0.1:{self._secure_port}"

    @property
    def pid(self) -> int | None:
        """Process id, while it runs."""
        return None if self._process is None else self._process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start, and wait until it serves. After ``stop`` or ``kill`` it has its old data and port.

        Raises:
            ZooKeeperNotStarted: Java or the jars are missing, or the server does not start.
        """
        java, jars = _requirements()
        restarted = self._port != 0
        for attempt in range(START_ATTEMPTS):
            if not restarted:
                self._port, self._secure_port = free_port(), free_port()
            self._launch(java, jars)
            if self._wait_until_it_serves():
                return
            self.kill()
            if restarted or attempt == START_ATTEMPTS - 1:
                break
        log = (self._directory / "log").read_text(errors="replace")
        raise ZooKeeperNotStarted(f"ZooKeeper did not start on {self.address}; it printed: ...{log[-2000:]}")

    def _launch(self, java: str, jars: str) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        config = self._directory / "zoo.cfg"
        settings = {
            "dataDir": self._directory / "data",
            "clientPort": self._port,
            "clientPortAddress": "127.0.0.1",
            "tickTime": self._tick_ms,
            "maxSessionTimeout": MAX_SESSION_MS,
            "maxClientCnxns": 0,
            "4lw.commands.whitelist": "conf",
            **self._tls(),
        }
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        force = f"-Dzookeeper.forceSync={'yes' if self._durable else 'no'}"
        command = [java, *_JVM_OPTIONS, force, "-cp", jars, "org.apache.zookeeper.server.quorum.QuorumPeerMain"]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen([*command, str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _tls(self) -> dict[str, object]:
        if self._security is None:
            return {}
        pair = self._directory / "server.pem"
        pair.touch(mode=0o600)
        pair.write_bytes((self._security / "tls.key").read_bytes() + (self._security / "tls.crt").read_bytes())
        return {
            "secureClientPort": self._secure_port,
            "secureClientPortAddress": "127.0.0.1",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": pair,
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": self._security / "ca.crt",
            "ssl.trustStore.type": "PEM",
            "ssl.clientAuth": "need",
            "ssl.hostnameVerification": "false",
        }

    def _wait_until_it_serves(self) -> bool:
        for _ in range(START_POLLS):
            if self._serves():
                return True
            # Waiting for the process is the pause between two polls, and notices its end at once.
            with suppress(subprocess.TimeoutExpired):
                self._running().wait(POLL_SECONDS)
                return False
        return False

    def _serves(self) -> bool:
        """Whether this server responds, and not another one on the same port."""
        answer = b""
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1.0) as connection:
                connection.sendall(b"conf")
                while part := connection.recv(4096):
                    answer += part
        except OSError:
            return False
        return str(self._directory / "data").encode() in answer

    def stop(self) -> None:
        """Stop the server cleanly."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server, even while it is paused. No error if it does not run."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Stop the server with SIGSTOP: connections stay open without replies. Returns when all threads are stopped."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        for _ in range(STOP_POLLS):
            if all(_stopped(status) for status in Path(f"/proc/{process.pid}/task").glob("*/status")):
                return
            time.sleep(STOP_POLL_SECONDS)

    def resume(self) -> None:
        """Continue a paused server."""
        self._running().send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_SECONDS)
        self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ZooKeeperNotStarted("the ZooKeeper server does not run")
        return self._process


def _requirements() -> tuple[str, str]:
    """The Java to run, and the class path of PySpark's jars."""
    java = shutil.which("java")
    if java is None:
        raise ZooKeeperNotStarted("ZooKeeper needs Java 17, and there is no `java` on the PATH: run `make java`.")
    spec = importlib.util.find_spec("pyspark")
    for folder in spec.submodule_search_locations or () if spec else ():
        jars = Path(folder) / "jars"
        if any(jars.glob("zookeeper-3*.jar")):
            return java, f"{jars}/*"
    raise ZooKeeperNotStarted("ZooKeeper's jars come with PySpark, which is not installed here: run `make setup`.")
