"""Without security, and without --insecure, a process listens on loopback only."""

import asyncio

import pytest

from tallybook.bookie.process.server import serve
from tallybook.core.errors import InvalidConfig
from tallybook.core.settings import BookieSettings, GatewaySettings
from tallybook.gateway.server import serving
from tallybook.runtime.listening import refuse_open_port
from tallybook.runtime.process import RealProcess

OPEN = ("0.0.0.0:0", "[::]:0", "10.0.0.1:7400", "bookie.example:7400")


@pytest.mark.parametrize("listen", OPEN)
def test_an_address_that_others_reach_needs_security_or_a_word(listen):
    with pytest.raises(InvalidConfig, match=r"a gateway on .* without security .*--insecure"):
        refuse_open_port("a gateway", listen, security="", insecure=False)
    refuse_open_port("a gateway", listen, security="", insecure=True)
    refuse_open_port("a gateway", listen, security="/etc/tallybook/security", insecure=False)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.0.0.2:0", "[::1]:0", "localhost:0"])
def test_loopback_needs_neither(listen):
    refuse_open_port("a gateway", listen, security="", insecure=False)


async def test_a_bookie_does_not_start_on_such_an_address(tmp_path):
    settings = BookieSettings(data_directory=str(tmp_path / "data"), metadata="memory:", listen=OPEN[0])
    with pytest.raises(InvalidConfig, match="a bookie on"):
        await serve(settings, asyncio.Event(), RealProcess(), asyncio.Event())
    assert not (tmp_path / "data").exists()


async def test_a_gateway_does_not_start_on_such_an_address():
    with pytest.raises(InvalidConfig, match="a gateway on"):
        async with serving(None, GatewaySettings(metadata="memory:", listen=OPEN[0])):
            pytest.fail("it has started")
