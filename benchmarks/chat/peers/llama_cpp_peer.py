"""llama.cpp behind a pipe: a line {"prompt": [ids], "tokens": n} in, a line of token times and tokens out.

PYTHON llama_cpp_peer.py MODEL.gguf THREADS
"""

from __future__ import annotations

import itertools
import json
import sys
import time

from llama_cpp import Llama

CONTEXT = 4096


def main() -> None:
    model, threads = sys.argv[1], int(sys.argv[2])
    llama = Llama(model, n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads, verbose=False)
    for line in sys.stdin:
        request = json.loads(line)
        times: list[float] = []
        tokens: list[int] = []
        started = time.perf_counter()
        drawn = llama.generate(request["prompt"], temp=0.0, repeat_penalty=1.0)
        for token in itertools.islice(drawn, request["tokens"]):
            times.append(time.perf_counter() - started)
            tokens.append(int(token))
        print(json.dumps({"times": times, "tokens": tokens}), flush=True)


if __name__ == "__main__":
    main()
