"""What clients of OpenVLA and OpenVLA-OFT make of a service: requests in order, results as one line of JSON.

.clients/openvla/bin/python tests/clients/openvla_session.py PORT OBSERVATION STEP...

OBSERVATION is JSON: [224, 224, 3] is a new random image per call, [8] a new state, a string itself.

act:N             N requests as OpenVLA's documentation has them: the answer is one action
encoded:N         the same, encoded twice
oft:N:STEPS       N rows as OFT's robot program executes them: a queue of the first STEPS rows of each answer
oft-encoded:N     N requests of OFT, encoded twice
without:KEY       a request without this key
body:TEXT         TEXT instead of a body

`wrong` counts answers other than the stub policy's to this observation. An `answer` is what `.json()` returns, whatever
the status. A step that raises has an `error`.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import zlib
from collections import deque

import json_numpy
import numpy as np

json_numpy.patch()
import requests  # noqa: E402  OpenVLA's documentation patches first

RANDOM = np.random.default_rng(0)


def made(spec):
    """An observation, or a part of one."""
    if isinstance(spec, dict):
        return {key: made(part) for key, part in spec.items()}
    if isinstance(spec, list):
        return RANDOM.normal(size=spec) if len(spec) == 1 else RANDOM.integers(0, 256, spec, np.uint8)
    return spec


def stub_row(observation, dims):
    """The first row with which the stub policy of the tests answers: from each image and each state, in this order."""
    arrays = [part for part in observation.values() if isinstance(part, np.ndarray)]
    seen = [zlib.crc32(part.tobytes()) / 2**32 for part in arrays if part.ndim == 3]
    seen += [math.fsum(part.astype(np.float32)) for part in arrays if part.ndim == 1]
    return np.array([seen[index % len(seen)] for index in range(dims)])


def first_row(answer):
    """The action, or the first one of a chunk; None of anything else."""
    if isinstance(answer, list) and answer:
        answer = answer[0]
    return answer if isinstance(answer, np.ndarray) else None


def double(observation):
    """The body of a client that encodes its observation itself."""
    return {"encoded": json.dumps(observation)}


def asked(url, headers, body):
    """The response and how long it took in ms."""
    start = time.perf_counter()
    if isinstance(body, str):
        response = requests.post(url, data=body, headers={**headers, "content-type": "application/json"})
    else:
        response = requests.post(url, json=body, headers=headers)
    return response, 1e3 * (time.perf_counter() - start)


def described(answer):
    """An answer in a few words."""
    row = first_row(answer)
    if row is None:
        return {"answer": answer}
    rows = np.stack(answer) if isinstance(answer, list) else answer[None]
    return {"shape": list(rows.shape), "dtype": str(rows.dtype), "finite": bool(np.isfinite(rows).all())}


def take(ask, spec, step):
    """The result of one step."""
    name, _, argument = step.partition(":")
    if name == "body":
        response = ask(argument)[0]
        return {"statuses": [response.status_code], "answer": response.json()}
    if name == "without":
        spec, name, argument = {key: part for key, part in spec.items() if key != argument}, "act", "1"
    if name == "oft":
        rows, steps = map(int, argument.split(":"))
        queue, done, requests_made = deque(), [], 0
        while len(done) < rows:
            if not queue:
                requests_made += 1
                queue.extend(ask(made(spec))[0].json()[:steps])
            done.append(queue.popleft().tolist())
        return {"executed": len(done), "requests": requests_made, "width": len(done[0])}
    times, statuses, wrong = [], set(), 0
    for _ in range(int(argument)):
        observation = made(spec)
        response, took = ask(double(observation) if name.endswith("encoded") else observation)
        answer = response.json()
        if name.endswith("encoded") and isinstance(answer, str):
            answer = json.loads(answer)
        row = first_row(answer)
        wrong += row is None or not np.allclose(row, stub_row(observation, len(row)), atol=1e-5)
        times.append(took)
        statuses.add(response.status_code)
    kind = response.headers.get("content-type")
    p50 = round(float(np.median(times)), 3)
    return {"statuses": sorted(statuses), "type": kind, "p50_ms": p50, "wrong": wrong, **described(answer)}


def main():
    """Take the steps, print what came."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("observation", type=json.loads)
    parser.add_argument("steps", nargs="+")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--token", help="sent as a bearer token; the clients themselves send none")
    arguments = parser.parse_args()
    url = f"http://{arguments.host}:{arguments.port}/act"
    headers = {"authorization": f"Bearer {arguments.token}"} if arguments.token else {}
    report = {"steps": []}
    for step in arguments.steps:
        try:
            result = take(lambda body: asked(url, headers, body), arguments.observation, step)
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        report["steps"].append({"step": step, **result})
    print(json.dumps(report))


if __name__ == "__main__":
    main()
