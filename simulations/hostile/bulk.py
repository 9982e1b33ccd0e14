"""Readers of what is large: tensors in files and on the wire, blocks, frames."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from node.wire import StepInput, parse_request, read_answer, read_input
from protocol import content
from protocol.car import CarReader, write_car
from protocol.generated import hocket_pb2 as pb
from protocol.tensor_files import TensorInfo, file_parts, read_checked
from protocol.tensors import encode
from simulations.hostile.inputs import RUN, Reader, blind_maker, odd_json
from simulations.hostile.mutations import blind, structured
from swarm.carrier import Message as Envelope
from swarm.frames import FRAME, Assembler, FrameType, frame_header, read_error
from swarm.frames import encode as frames_of
from tts.config import ModelConfig, preset


def _tensor_files(folder: Path) -> list[Reader]:
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones((4,), np.float32)}
    data = b"".join(bytes(part) for part in file_parts(tensors))
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    expected = [TensorInfo("a", "float32", (2, 3)), TensorInfo("b", "float32", (4,))]
    path = folder / "fuzzed.safetensors"

    def with_header(draw: random.Random) -> tuple[str, bytes]:
        way = draw.randrange(6)
        if way == 0:
            text = b'{"a":' * draw.choice((100, 50_000))
        elif way == 1:
            many = {f"t{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(draw.choice((50, 3000)))}
            text = json.dumps(many | header).encode()
        elif way == 2:
            shape = draw.choice(([2**40, 2**40], [2**24, 2**24, 2**24], [0, 2**47], [1] * 40, [2**31, 2]))
            text = json.dumps({**header, "a": {**header["a"], "shape": shape}}).encode()
        else:
            text = json.dumps(odd_json(draw, header)).encode()
        length = draw.choice((len(text), len(text), len(text), 2**63, len(text) + 1, 0, 100 * 2**20))
        return "another header", length.to_bytes(8, "little") + text + body

    def read(data: bytes) -> object:
        path.write_bytes(data)
        return read_checked(path, expected)

    return [Reader("tensor file", blind_maker(data), read), Reader("tensor file, its header changed", with_header, read)]


def small_config() -> ModelConfig:
    """The model of the fuzzed stage: as small as one can be."""
    return preset("test", n_codebooks=2, codebook_size=16, n_phonemes=12, n_layers=4, d_model=32, text_dim=16)


def step_input(config: ModelConfig, number: int, frames: int = 6) -> StepInput:
    """Input number `number` of a later stage: two utterances."""
    draw = np.random.default_rng(number)
    return StepInput(
        draw.standard_normal((2, frames + config.n_codebooks, config.d_model)).astype(np.float32),
        {
            "codes": draw.integers(0, config.codebook_size, (2, config.n_codebooks, frames)).astype(np.uint16),
            "n_frames": np.array([frames, frames - 2], np.int32),
            "speaker": np.zeros((2, config.speaker_dim), np.float32),
            "language": np.zeros(2, np.int32),
        },
    )


def step_request(config: ModelConfig, number: int, *, run_id: str, base_cid: str) -> tuple[pb.TrainStepRequest, list[Any]]:
    """A request that an honest stage 0 would send, and its body."""
    given = step_input(config, number)
    tensors = given.encode("fp32")
    request = pb.TrainStepRequest(
        run_id=run_id, round=1, base_cid=base_cid, stage=1, microbatch_id=number, attempts=1, deadline_s=20.0,
        mode=pb.TRAIN, seed=3, inner_step_frames=40, generation=1, receiver_generation=1, wire="fp32",
        frames=int(given.side["n_frames"].sum()), tensors=[tensor.head for tensor in tensors],
    )  # fmt: skip
    return request, [tensor.data for tensor in tensors]


def _tensors_on_the_wire() -> list[Reader]:
    config = small_config()
    request, body = step_request(config, 1, run_id=RUN, base_cid="base")
    whole = b"".join(bytes(part) for part in body)

    def split(data: bytes) -> tuple[bytes, memoryview]:
        size = int.from_bytes(data[:4], "big")
        return data[4 : 4 + size], memoryview(data)[4 + size :]

    def make(draw: random.Random) -> tuple[str, bytes]:
        if draw.random() < 0.7:
            name, changed = structured(draw, draw.choice(request.tensors))
            spoilt = pb.TrainStepRequest()
            spoilt.CopyFrom(request)
            spoilt.tensors[draw.randrange(len(spoilt.tensors))].CopyFrom(changed)
            return "a tensor's head", spoilt.ByteSize().to_bytes(4, "big") + spoilt.SerializeToString() + whole
        name, data = blind(draw, whole)
        return f"a body: {name}", request.ByteSize().to_bytes(4, "big") + request.SerializeToString() + data

    def read(data: bytes) -> object:
        head, rest = split(data)
        return read_input(parse_request(head), rest, config)

    grad = encode("grad", np.ones((2, 8, 32), np.float32), "int8")
    answer = pb.TrainStepAnswer(
        tensors=[grad.head], losses=[pb.CodebookLoss(ce_sum=2.0, count=10)] * 2, path=[pb.PathEntry(stage=1, peer_id="p", pid=3)]
    )

    def make_answer(draw: random.Random) -> tuple[str, bytes]:
        _, changed = structured(draw, answer)
        return "a field", changed.SerializeToString()

    def read_it(data: bytes) -> object:
        opened = pb.TrainStepAnswer.FromString(data)
        message = Envelope(b"", [grad.data])
        return read_answer(opened, message, mode=pb.TRAIN, shape=(2, 8, 32), config=config, next_stage=1)

    return [Reader("tensors of a request", make, read), Reader("answer of a stage", make_answer, read_it)]


def _blocks() -> list[Reader]:
    store = dict(content.iter_blocks(bytes(range(256)) * 20, chunk_bytes=512))
    root = list(store)[-1]

    def node(draw: random.Random) -> tuple[str, bytes]:
        return blind(draw, store[root])

    def read_node(data: bytes) -> object:
        # A hostile peer names what it made; the name fits.
        cid = content.block_cid(content.DAG_PB, data)
        return content.links(cid, data), content.file_size(cid, data)

    car = b"".join(write_car(root, store.__getitem__))

    def read_car(data: bytes) -> object:
        reader, found = CarReader(), 0
        for start in range(0, len(data), 700):
            found += sum(1 for _ in reader.feed(data[start : start + 700]))
        reader.finish()
        return found

    def cid(draw: random.Random) -> tuple[str, bytes]:
        return blind(draw, root.encode())

    return [
        Reader("node of a file", node, read_node), Reader("car", blind_maker(car), read_car),
        Reader("cid", cid, lambda data: content.parse_cid(data.decode("utf-8", errors="replace"))),
    ]  # fmt: skip


def _frames() -> list[Reader]:
    good = b"".join(bytes(piece) for piece in frames_of(Envelope(b"head" * 30, [b"body" * 300])))

    def read(data: bytes) -> object:
        assembler, position, done = Assembler(1 << 16), 0, 0
        while position + FRAME.size <= len(data):
            kind, size = frame_header(data[position : position + FRAME.size])
            payload = data[position + FRAME.size : position + FRAME.size + size]
            position += FRAME.size + size
            if kind is FrameType.ERROR:
                read_error(payload)
                break
            if kind is FrameType.WAITING:
                continue
            if assembler.add(kind, payload) is not None:
                done += 1
                assembler = Assembler(1 << 16)
        return done

    return [Reader("frames", blind_maker(good), read)]


def bulk_readers(folder: Path) -> list[Reader]:
    """All of them.

    Args:
        folder: for a file that is written again and again.
    """
    return [*_tensor_files(folder), *_tensors_on_the_wire(), *_blocks(), *_frames()]
