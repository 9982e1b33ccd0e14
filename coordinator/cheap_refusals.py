"""Calls that are no message, and calls that are refused: they leave nothing behind, neither in the log nor in memory.

What is no message at all is read as an empty one, which every call refuses by number and counts against its sender. Left to
itself, gRPC would end such a call before the door sees it: a traceback in the log for each, and past all rate limits.

And gRPC keeps the exception with which a call was aborted beside the call, and the exception's traceback leads back to the call
and to the request: a cycle, which only the garbage collector finds. It comes by seldom to what has lived for a while, and does
not know how large a request is; so many refused calls, of some megabytes each, would be held at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc.aio
from google.protobuf.message import DecodeError

logger = logging.getLogger(__name__)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Behaviour: TypeAlias = "Callable[[Any, Any], Awaitable[Any]]"


def read_or_empty(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """What `deserialize` reads; from bytes that it cannot read, what it reads from none."""

    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            logger.debug("%d bytes that are no message", len(data))
            return deserialize(b"")

    return read


def forgetting(behaviour: Behaviour) -> Behaviour:
    """As `behaviour`, but where it aborts the call, the exception leads to nothing of what the call had."""

    async def call(request: Any, context: Any) -> Any:
        answer = behaviour(request, context)
        del request, context  # this frame is the one that the traceback keeps
        try:
            return await answer
        except grpc.aio.AbortError as error:
            error.__context__ = None
            raise error.with_traceback(None) from None
        finally:
            del answer

    return call


class CheapRefusals(grpc.aio.ServerInterceptor):
    """For a server whose calls take one message or a stream, and answer with one message."""

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]], details: grpc.HandlerCallDetails
    ) -> Handler:
        handler = await continuation(details)
        behaviour = None if handler is None else handler.stream_unary or handler.unary_unary
        if behaviour is None or handler.request_deserializer is None:
            return handler
        make = grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        return make(
            forgetting(behaviour), request_deserializer=read_or_empty(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )  # fmt: skip
