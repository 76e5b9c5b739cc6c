"""A question about a robot over HTTP, with the official client of OpenAI's API: `pip install openai`, then
`edgeflow serve`.

python examples/chat.py [--address http://localhost:8000] [--model NAME] [--system TEXT] ["Where is the blue ball?"]
"""

from __future__ import annotations

import argparse

import openai

STATE = (
    "Robot state: arm x+12 y-03 z21; gripper closed; holding red cube; objects 2; red cube x+10 y-05 z02 d19; "
    "blue ball x-14 y+08 z12 d30; task lift the red cube; mode pipelined; fps 20; age 040 ms; faults none"
)
QUESTION = "Where is the blue ball?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", nargs="?", default=QUESTION)
    parser.add_argument("--address", default="http://localhost:8000")
    parser.add_argument("--model", default="", help="a name of /v1/models, NAME:SLOT for a declared prefix")
    parser.add_argument("--system", default=STATE, help="the system message; by default the state of a robot")
    parser.add_argument("--token", default="none", help="needed if the service requires one")
    arguments = parser.parse_args()
    client = openai.OpenAI(base_url=f"{arguments.address}/v1", api_key=arguments.token)
    stream = client.chat.completions.create(
        model=arguments.model,
        messages=[
            {"role": "system", "content": arguments.system},
            {"role": "user", "content": arguments.question},
        ],
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
        if chunk.usage is not None:
            print(f"\n{chunk.usage.model_dump()['edgeflow']}")


if __name__ == "__main__":
    main()
