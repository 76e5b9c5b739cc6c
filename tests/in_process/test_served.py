"""Answers in process are those of a service with real worker processes, bit by bit."""

from __future__ import annotations

from types import SimpleNamespace

import httpx
import numpy as np

import edgeflow
from edgeflow_client.rpc import control_pb2 as pb
from tests.service.harness import serving

OWN = SimpleNamespace(launch=None)  # the service starts its workers itself
TASK = "grasp the red handle"
STAMPS_NS = [5_000_000, 55_000_000, 105_000_000]
PICTURES = np.random.default_rng(0).integers(0, 256, (len(STAMPS_NS), 96, 96, 3), np.uint8)
POSE = [0.4, 0.0, 0.3, 0.0, 0.1, 0.2, 1.0]
STATE = "Robot state: arm x+12 y-03 z21; gripper closed; holding red cube; objects 1; red cube x+10 y-05 z02 d19; "
MESSAGES = [
    {"role": "system", "content": f"{STATE}task lift the red cube; mode pipelined; fps 20; age 040 ms; faults none"},
    {"role": "user", "content": "Where is the <|im_end|> red cube?"},
]


async def answered(model: str, **settings) -> tuple[list[tuple[float, ...]], httpx.Response | None]:
    """The chunks that a service sends, and the answer of its chat model, if it has one."""
    wants_state = {"state": [pb.StateVector(name="observation.state", size=len(POSE))]} if model != "demo" else {}
    camera = pb.Camera(name="wrist", width=96, height=96, format=pb.IMAGE_FORMAT_RGB8)
    async with serving(model, OWN, standby=False, **settings) as served:
        robot = served.robot()
        await robot.open(cameras=[camera], instruction=TASK, control_period_ms=5000, chunks=True, **wants_state)
        chunks = []
        for seq, (picture, stamp_ns) in enumerate(zip(PICTURES, STAMPS_NS, strict=True), start=1):
            await robot.frame(seq, picture.tobytes(), stamp_ns=stamp_ns, proprio=POSE if wants_state else [])
            chunks.append(tuple((await robot.action(seq)).values))
        chat = None
        if "chat__model" in settings:
            async with httpx.AsyncClient(timeout=60) as http:
                body = {"messages": MESSAGES, "temperature": 0}
                chat = await http.post(f"{served.http}/v1/chat/completions", json=body)
        return chunks, chat


def in_process(model: str, **settings) -> list[tuple[float, ...]]:
    observations = [
        {"wrist": picture, "instruction": TASK, "stamp_ns": stamp_ns}
        for picture, stamp_ns in zip(PICTURES, STAMPS_NS, strict=True)
    ]
    with edgeflow.load(model, **settings) as policy:
        if policy.inputs.state:
            observations = [{**each, "state": POSE} for each in observations]
        return [policy.infer(each).values for each in observations]


async def test_tokens_of_actions_and_of_chat():
    served, response = await answered("demo", chat__model="demo-chat")
    assert in_process("demo") == served
    assert response is not None
    answer, usage = response.json()["choices"][0], response.json()["usage"]
    with edgeflow.load_chat("demo-chat") as chat:
        found = chat.generate(MESSAGES, temperature=0)
    assert (found.text, found.finish) == (answer["message"]["content"], answer["finish_reason"])
    assert (found.prompt_tokens, len(found.tokens)) == (usage["prompt_tokens"], usage["completion_tokens"])


async def test_denoised_chunks_whose_noise_follows_from_the_stamp():
    served, _ = await answered("demo-flow", mode="serial")
    assert len(set(served)) == len(STAMPS_NS)
    assert in_process("demo-flow") == served
