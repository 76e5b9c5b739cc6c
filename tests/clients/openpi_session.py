"""What openpi's own client makes of a service: steps in order over one connection, results as one line of JSON.

.clients/openpi/bin/python tests/clients/openpi_session.py PORT OBSERVATION STEP...

OBSERVATION is JSON: [224, 224, 3] is a new random image per call, [8] a new state, a string itself.

infer:N             N calls of `infer`
broker:N:HORIZON    N rows from an ActionChunkBroker
runtime:N:HORIZON   an episode of N rows of a Runtime with an agent and a broker, as openpi's examples run a robot
without:KEY         a call without this key
rate:N:HZ           N calls of `infer`, at a fixed rate
again:N:HZ          calls at a fixed rate until actions follow errors, N at most

`wrong` counts answers of `infer` other than those of the stub policy to this observation.
A step that raises has an `error`, and the next one goes on with the same connection.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import zlib

import numpy as np
from openpi_client.action_chunk_broker import ActionChunkBroker
from openpi_client.runtime.agents.policy_agent import PolicyAgent
from openpi_client.runtime.environment import Environment
from openpi_client.runtime.runtime import Runtime
from openpi_client.websocket_client_policy import WebsocketClientPolicy

RANDOM = np.random.default_rng(0)


def made(spec):
    """An observation, or a part of one."""
    if isinstance(spec, dict):
        return {key: made(part) for key, part in spec.items()}
    if isinstance(spec, list):
        return (
            RANDOM.normal(size=spec).astype(np.float32) if len(spec) == 1 else RANDOM.integers(0, 256, spec, np.uint8)
        )
    return spec


def stub_row(observation, dims):
    """The first row with which the stub policy of the tests answers: from each image and each state, in this order."""
    parts = [part for each in observation.values() for part in (each.values() if isinstance(each, dict) else [each])]
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    seen = [zlib.crc32(part.tobytes()) / 2**32 for part in arrays if part.ndim == 3]
    seen += [math.fsum(part.astype(np.float32)) for part in arrays if part.ndim == 1]
    return np.array([seen[index % len(seen)] for index in range(dims)], np.float32)


class RecordingArm(Environment):
    """A robot that remembers what it was sent."""

    def __init__(self, spec):
        self._spec, self.rows = spec, []

    def reset(self):
        pass

    def is_episode_complete(self):
        return False

    def get_observation(self):
        return made(self._spec)

    def apply_action(self, action):
        self.rows.append(action["actions"])


def infer(policy, spec, count, hz=0.0):
    """Calls with what came and how long each took."""
    times, replies, wrong = [], [], 0
    start = time.perf_counter()
    for number in range(count):
        if hz:
            time.sleep(max(start + number / hz - time.perf_counter(), 0))
        observation = made(spec)
        sent = time.perf_counter()
        replies.append(policy.infer(observation))
        times.append(1e3 * (time.perf_counter() - sent))
        actions = replies[-1]["actions"]
        if actions.ndim == 2:
            wrong += not np.allclose(actions[0], stub_row(observation, actions.shape[1]), atol=1e-5)
    reply = replies[-1]
    return {
        "calls": count,
        "shapes": sorted({str(each["actions"].shape) for each in replies}),
        "dtype": str(actions.dtype),
        "finite": all(bool(np.isfinite(each["actions"]).all()) for each in replies),
        "wrong": wrong,
        "beside": {key: value for key, value in reply.items() if key != "actions"},
        "ms": {f"p{share}": round(float(np.percentile(times, share)), 3) for share in (0, 50, 99, 100)},
        "seconds": round(time.perf_counter() - start, 2),
    }


def infer_again(policy, spec, most, hz):
    """Calls until one has actions after others had none."""
    errors, wrong = [], 0
    for _ in range(most):
        try:
            wrong += infer(policy, spec, 1)["wrong"]
        except RuntimeError as error:
            errors.append(named(error))
        else:
            if errors:
                return {"wrong": wrong, "errors": errors, "recovered": True}
        time.sleep(1 / hz)
    return {"wrong": wrong, "errors": errors, "recovered": False}


def take(client, spec, step):
    """The result of one step."""
    name, *arguments = step.split(":", 1 if step.startswith("without:") else -1)
    if name == "infer":
        return infer(client, spec, int(arguments[0]))
    if name == "rate":
        return infer(client, spec, int(arguments[0]), float(arguments[1]))
    if name == "again":
        return infer_again(client, spec, int(arguments[0]), float(arguments[1]))
    if name == "without":
        return infer(client, {key: part for key, part in spec.items() if key != arguments[0]}, 1)
    rows, horizon = map(int, arguments)
    broker = ActionChunkBroker(client, horizon)
    if name == "broker":
        return infer(broker, spec, rows)
    arm = RecordingArm(spec)
    result = {}
    try:
        Runtime(arm, PolicyAgent(broker), [], max_episode_steps=rows - 1).run()
    except Exception as error:
        result["error"] = named(error)
    return {"rows": len(arm.rows), "finite": bool(np.isfinite(arm.rows).all()), **result}


def named(error):
    """An error in one line."""
    return f"{type(error).__name__}: {error}"


def main():
    """Connect, take the steps, print what came."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("observation", type=json.loads)
    parser.add_argument("steps", nargs="*")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--api-key")
    arguments = parser.parse_args()
    report = {"steps": []}
    start = time.perf_counter()
    try:
        client = WebsocketClientPolicy(arguments.host, arguments.port, arguments.api_key)
    except Exception as error:
        report["error"] = named(error)
    else:
        report["metadata"] = client.get_server_metadata()
        report["connected_s"] = round(time.perf_counter() - start, 3)
        for step in arguments.steps:
            try:
                result = take(client, arguments.observation, step)
            except Exception as error:
                result = {"error": named(error)}
            report["steps"].append({"step": step, **result})
    print(json.dumps(report, default=lambda value: value.tolist()))


if __name__ == "__main__":
    main()
