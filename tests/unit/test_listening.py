"""Which address a listening socket gets."""

import socket

import pytest

from tallybook.runtime.listening import address_of, bind

V4 = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))
V6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))


@pytest.mark.parametrize("found", [[V4, V6], [V6, V4]])
def test_a_name_with_addresses_of_both_kinds_is_served_at_the_one_of_ipv4(found, monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with bind("localhost:0") as bound:
        assert address_of(bound).startswith("127.0.0.1:")


def test_a_name_with_an_address_of_ipv6_only_is_served_there(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [V6])
    with bind("bookie.example:0") as bound:
        assert address_of(bound).startswith("[::1]:")
