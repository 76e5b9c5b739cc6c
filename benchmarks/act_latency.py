"""The time of POST /v1/act with one 224x224 frame, for one service or for several side by side.

    .venv/bin/python -m benchmarks.act_latency --json FILE
    .venv/bin/python -m benchmarks.act_latency http://127.0.0.1:8000 http://127.0.0.1:9000

Without addresses it starts a service itself. Requests alternate between the services, over connections that stay
open; the time is from the first byte sent to the last byte received, less the model's inference time in the answer.
"""

from __future__ import annotations

import base64
import http.client
import json
import time
from urllib.parse import urlsplit

import numpy as np
import simplejpeg

from benchmarks.command import keep, machine_facts, options
from benchmarks.serving import serving

SIDE = 224
SHARES = {"p50": 50, "p90": 90, "p99": 99}


def main() -> None:
    """Measure and print."""
    parser = options(__doc__)
    parser.add_argument("addresses", nargs="*", help="HTTP addresses of running services")
    parser.add_argument("--count", type=int, default=400, help="requests per service")
    arguments = parser.parse_args()
    if arguments.addresses:
        figures = measure(arguments.addresses, arguments.count)
    else:
        with serving({"chat": {"enabled": False}}) as service:
            figures = measure([service.http], arguments.count)
    for address, parts in figures.items():
        for name, shares in parts.items():
            print(f"{address} {name}: " + ", ".join(f"{share} {ms:.2f}" for share, ms in shares.items()) + " ms")
    keep(arguments.json, {**machine_facts(), "side": SIDE, "count": arguments.count, "milliseconds": figures})


def measure(addresses: list[str], count: int) -> dict[str, dict[str, dict[str, float]]]:
    """Milliseconds by address: whole request, and what remains without inference."""
    body = _body()
    links = {each: http.client.HTTPConnection(urlsplit(each).netloc, timeout=30) for each in addresses}
    times: dict[str, list[tuple[float, float]]] = {each: [] for each in addresses}
    for index in range(count + count // 10):
        for address, link in links.items():
            taken = _ask(link, body)
            if index >= count // 10:
                times[address].append(taken)
    return {
        address: {
            name: {share: float(np.percentile(column, point)) for share, point in SHARES.items()}
            for name, column in zip(("whole", "without inference"), zip(*taken, strict=True), strict=True)
        }
        for address, taken in times.items()
    }


def _body() -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (SIDE // 8, SIDE // 8, 3), np.uint8)
    frame = simplejpeg.encode_jpeg(np.ascontiguousarray(noise.repeat(8, 0).repeat(8, 1)), quality=90)
    image = base64.b64encode(frame).decode()
    return json.dumps({"image": image, "instruction": "grasp the red handle"}).encode()


def _ask(link: http.client.HTTPConnection, body: bytes) -> tuple[float, float]:
    """Milliseconds of one request, and of it without inference."""
    began = time.perf_counter()
    link.request("POST", "/v1/act", body, {"content-type": "application/json"})
    answer = link.getresponse()
    data = answer.read()
    took_ms = (time.perf_counter() - began) * 1e3
    if answer.status != http.client.OK:
        raise SystemExit(f"status {answer.status}: {data[:200].decode(errors='replace')}")
    return took_ms, took_ms - json.loads(data)["timings_ms"]["inference"]


if __name__ == "__main__":
    main()
