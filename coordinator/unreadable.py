"""Requests that are no message at all: read as an empty one, which every call refuses by number and counts against its sender.

Left to itself, gRPC would end such a call before the door sees it: a traceback in the log for each, and past all rate limits.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc.aio
from google.protobuf.message import DecodeError

logger = logging.getLogger(__name__)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


def read_or_empty(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """What `deserialize` reads; from bytes that it cannot read, what it reads from none."""

    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            logger.debug("%d bytes that are no message", len(data))
            return deserialize(b"")

    return read


class UnreadableIsEmpty(grpc.aio.ServerInterceptor):
    """For a server whose calls take one message or a stream, and answer with one message."""

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]], details: grpc.HandlerCallDetails
    ) -> Handler:
        handler = await continuation(details)
        if handler is None or handler.request_deserializer is None:
            return handler
        make = grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        return make(
            handler.stream_unary if handler.request_streaming else handler.unary_unary,
            request_deserializer=read_or_empty(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )
