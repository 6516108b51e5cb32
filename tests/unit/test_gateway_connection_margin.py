"""Connections that a gateway's gRPC accepts beyond the limit, if few files may be open."""

from __future__ import annotations

import pytest

from tallybook.core.errors import InvalidConfig
from tallybook.core.settings import GatewaySettings
from tallybook.gateway.server import OWN_DESCRIPTORS, reserve_connections

MOST = 1024


def settings(token_listen: str) -> GatewaySettings:
    # Only with security may there be a port for tokens, which is nothing to the numbers.
    plain = GatewaySettings(metadata="memory:", max_connections=MOST)
    return plain.model_copy(update={"token_listen": token_listen})


@pytest.mark.parametrize(("token_listen", "ports"), [("", 1), ("127.0.0.1:0", 2)])
def test_each_port_accepts_more_than_all_ports_may_have_however_few_files_may_be_open(
    token_listen: str, ports: int
) -> None:
    started = 0
    for descriptors in range(OWN_DESCRIPTORS, 6 * MOST, 16):
        try:
            spare = reserve_connections(settings(token_listen), descriptors)
        except InvalidConfig:
            assert not started, "more files are never too few"
            continue
        started += 1
        # On each port gRPC accepts more than the watch permits, and so the watch sees new connections.
        accepted = (MOST + spare) // ports
        assert MOST + MOST // 8 <= accepted <= 2 * MOST
        assert ports * accepted + OWN_DESCRIPTORS <= descriptors
    assert started


def test_a_gateway_with_too_few_files_says_how_many_it_needs_and_what_to_do() -> None:
    with pytest.raises(InvalidConfig, match=r"ulimit -n.*needs 2560.*lower max_connections"):
        reserve_connections(settings("127.0.0.1:0"), 2559)
    reserve_connections(settings("127.0.0.1:0"), 2560)
