"""A router that translates addresses and ports and lets nobody in: what is sent from inside goes out under the router's address
and a port that is taken for that one destination alone, and only answers from there come back. So nobody outside can dial
somebody inside, nor can two who dial each other at once meet (a "symmetric" NAT).

    python translator.py INSIDE_DEVICE OUTSIDE_DEVICE INSIDE_ADDRESS PUBLIC_ADDRESS

Makes the two TUN devices, which are to be moved to the networks inside and outside, and prints one line. Until standard input
ends it carries IPv4 packets of TCP and UDP between them; then it prints how many packets from outside it has refused.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import sys

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
TCP, UDP = 6, 17

FIRST_PORT = 20_000


def open_tun(name: str) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return descriptor


def checksum(data: bytes) -> int:
    """RFC 1071."""
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def rewritten(packet: bytes, source: tuple[bytes, int], destination: tuple[bytes, int]) -> bytes:
    """The packet from and to other addresses and ports, with checksums that fit them."""
    size = (packet[0] & 15) * 4
    head, body = bytearray(packet[:size]), bytearray(packet[size:])
    head[12:16], head[16:20], head[10:12] = source[0], destination[0], b"\0\0"
    head[10:12] = struct.pack("!H", checksum(bytes(head)))
    body[:4] = struct.pack("!HH", source[1], destination[1])
    place = 16 if head[9] == TCP else 6
    body[place : place + 2] = b"\0\0"
    pseudo = source[0] + destination[0] + struct.pack("!BBH", 0, head[9], len(body))
    body[place : place + 2] = struct.pack("!H", checksum(pseudo + bytes(body)) or 0xFFFF)
    return bytes(head + body)


def ends(packet: bytes) -> tuple[int, int, int] | None:
    """Protocol, source port and destination port; None for what is not carried: other protocols, and fragments."""
    if packet[0] >> 4 != 4 or packet[9] not in (TCP, UDP) or struct.unpack("!H", packet[6:8])[0] & 0x3FFF:
        return None
    size = (packet[0] & 15) * 4
    source, destination = struct.unpack("!HH", packet[size : size + 4])
    return packet[9], source, destination


def main(inside_name: str, outside_name: str, inside_address: str, public_address: str) -> None:
    inside, outside = open_tun(inside_name), open_tun(outside_name)
    ours, public = socket.inet_aton(inside_address), socket.inet_aton(public_address)
    taken: dict[tuple[int, int, bytes, int], int] = {}  # protocol, port inside, address and port outside: public port
    back: dict[tuple[int, int, bytes, int], int] = {}  # protocol, public port, address and port outside: port inside
    refused = 0
    print("ready", flush=True)
    while True:
        readable, _, _ = select.select([inside, outside, sys.stdin], [], [])
        if sys.stdin in readable:
            break
        for descriptor in readable:
            packet = os.read(descriptor, 65536)
            found = ends(packet)
            if found is None:
                continue
            protocol, source, destination = found
            if descriptor == inside:
                remote = packet[16:20]
                port = taken.setdefault((protocol, source, remote, destination), FIRST_PORT + len(taken))
                back[protocol, port, remote, destination] = source
                os.write(outside, rewritten(packet, (public, port), (remote, destination)))
                continue
            remote = packet[12:16]
            port_inside = back.get((protocol, destination, remote, source))
            if port_inside is None:
                refused += 1
            else:
                os.write(inside, rewritten(packet, (remote, source), (ours, port_inside)))
    print(refused, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
