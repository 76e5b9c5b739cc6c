"""Round trips of openpi's own client, for its environment: openpi_loop.py PORT WARM_UP COUNT. JSON: milliseconds."""

import json
import sys
import time

import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy  # type: ignore[import-not-found]

port, warm_up, count = map(int, sys.argv[1:4])
client = WebsocketClientPolicy("127.0.0.1", port)
generator = np.random.default_rng(0)
names = ("observation/image", "observation/wrist_image")
images = {name: generator.integers(0, 256, (224, 224, 3), np.uint8) for name in names}
observation = {**images, "observation/state": np.zeros(8, np.float32), "prompt": "grasp the red handle"}
took_ms = []
for _ in range(warm_up + count):
    start = time.perf_counter()
    client.infer(observation)
    took_ms.append(1e3 * (time.perf_counter() - start))
print(json.dumps(took_ms[warm_up:]))
