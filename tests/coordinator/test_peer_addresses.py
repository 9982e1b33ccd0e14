"""Where the bootstrap peer listens and what it announces, from the run file."""

from __future__ import annotations

import pytest
from small_run import small_run

from common.errors import Code, HocketError
from coordinator.peer_addresses import announced_multiaddrs, listen_multiaddr
from coordinator.run_config import NetworkSection, RunConfig


def network(lines: str) -> NetworkSection:
    return RunConfig.parse(small_run(1) + "[network]\n" + lines).network


def test_by_itself_it_takes_the_host_of_listen_and_keeps_its_port() -> None:
    plain = network('listen = "127.0.0.1:7700"\n')
    assert listen_multiaddr(plain, []) == "/ip4/127.0.0.1/tcp/0"
    assert listen_multiaddr(plain, ["/ip4/127.0.0.1/tcp/4444/p2p/Qm"]) == "/ip4/127.0.0.1/tcp/4444"
    assert announced_multiaddrs(plain) == []
    assert listen_multiaddr(network('listen = "[::1]:7700"\n'), []) == "/ip6/::1/tcp/0"


def test_a_port_of_its_own_stands_whatever_was_announced_before() -> None:
    named = network(
        'listen = "0.0.0.0:7700"\nadvertise = ["run.example.org:80"]\npeer_listen = "0.0.0.0:7701"\n'
        'peer_advertise = ["run.example.org:7001", "192.0.2.7:7701", "[2001:db8::1]:7701"]\n'
    )
    assert listen_multiaddr(named, ["/dns/run.example.org/tcp/7001/p2p/Qm"]) == "/ip4/0.0.0.0/tcp/7701"
    assert announced_multiaddrs(named) == [
        "/dns/run.example.org/tcp/7001", "/ip4/192.0.2.7/tcp/7701", "/ip6/2001:db8::1/tcp/7701"
    ]  # fmt: skip


@pytest.mark.parametrize(("lines", "named"), [
    ('peer_advertise = ["a:1"]\n', "peer_listen"),
    ('peer_listen = "0.0.0.0:0"\n', "port"),
    ('peer_listen = "0.0.0.0:7701"\npeer_advertise = ["a:70000"]\n', "a:70000"),
    ('peer_listen = "0.0.0.0:7701"\npeer_advertise = ["a"]\n', "peer_advertise"),
    ('peer_listen = "7701"\n', "peer_listen"),
])  # fmt: skip
def test_a_slip_is_refused(lines: str, named: str) -> None:
    with pytest.raises(HocketError) as caught:
        network(lines)
    assert caught.value.code is Code.RUN_FILE_INVALID and named in caught.value.detail
