"""What a refused call brought is freed at once: it does not wait for the garbage collector."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence

import grpc.aio
import pytest

from common.errors import Code, HocketError
from coordinator.cheap_refusals import CheapRefusals
from protocol.generated import hocket_pb2 as pb
from protocol.generated import hocket_pb2_grpc as rpc

CALLS = 5


class _Brought(HocketError):
    """Stands for what a call held when it was refused: alive as long as its frames are."""


class _Refuses(rpc.CoordinatorServicer):
    async def Leave(self, request: pb.Signed, context: grpc.aio.ServicerContext[pb.Signed, pb.Signed]) -> pb.Signed:
        try:
            raise _Brought(Code.JOIN_REFUSED, "no")
        except _Brought as error:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, error.line())
        raise AssertionError("abort raises")

    async def Lease(self, request: pb.Signed, context: grpc.aio.ServicerContext[pb.Signed, pb.Signed]) -> pb.Signed:
        return request


async def _refused(interceptors: Sequence[grpc.aio.ServerInterceptor]) -> int:
    """Errors of refused calls that are still held when all of them are over."""
    server = grpc.aio.server(interceptors=list(interceptors))
    rpc.add_CoordinatorServicer_to_server(_Refuses(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    gc.collect()
    gc.disable()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = rpc.CoordinatorStub(channel)
            for _ in range(CALLS):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.Leave(pb.Signed())
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
                assert (caught.value.details() or "").startswith(f"H{int(Code.JOIN_REFUSED)}")
            assert (await stub.Lease(pb.Signed(payload=b"x"))).payload == b"x"
        await server.stop(None)
        return sum(type(thing) is _Brought for thing in gc.get_objects())
    finally:
        gc.enable()


def test_what_a_refused_call_brought_is_freed_at_once() -> None:
    assert asyncio.run(_refused([CheapRefusals()])) == 0


def test_left_to_itself_grpc_holds_it() -> None:
    """Or the interceptor is needed no more."""
    assert asyncio.run(_refused([])) == CALLS
