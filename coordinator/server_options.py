"""How much one caller, and all callers together, may hold of the gRPC server at a time."""

from __future__ import annotations

from coordinator.door import MAX_MESSAGE_BYTES

CALLS_PER_MEMBER = 4        # a held watch, one beside it, and an update or an opening
CALLS_FOR_OTHERS = 256      # people who ask for the status, members that are about to join

SERVER_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Two coordinators on one port would each get some of the calls.
    ("grpc.so_reuseport", 0),
    # Of one connection; a worker keeps one, with some ten calls on it at most.
    ("grpc.max_concurrent_streams", 128),
    ("grpc.max_metadata_size", 8 << 10),
    # Whoever begins a handshake and does not go on with it is dropped, and so is a connection that nobody uses.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 600_000),
    # A peer that is gone without a word is found out, and what it held is freed.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 15_000),
    # Workers ping each 20 s while they wait; more often is a waste, and ends the connection.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
]


def concurrent_calls(max_members: int) -> int:
    """How many calls are served at a time; further ones are refused at once."""
    return CALLS_PER_MEMBER * max_members + CALLS_FOR_OTHERS
