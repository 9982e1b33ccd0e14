"""Refused calls, freed as soon as they are refused.

gRPC keeps the exception with which a call was aborted beside the call, and the exception's traceback leads back to the call and
to the request: a cycle, which only the garbage collector finds. It comes by seldom to what has lived for a while, and does not
know how large a request is; so many refused calls, of some megabytes each, would be held at a time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc.aio

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Behaviour: TypeAlias = "Callable[[Any, Any], Awaitable[Any]]"


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


class RefusedAreFreed(grpc.aio.ServerInterceptor):
    """For a server whose calls take one message or a stream, and answer with one message."""

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]], details: grpc.HandlerCallDetails
    ) -> Handler:
        handler = await continuation(details)
        if handler is None or (handler.stream_unary or handler.unary_unary) is None:
            return handler
        make = grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        return make(
            forgetting(handler.stream_unary if handler.request_streaming else handler.unary_unary),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
