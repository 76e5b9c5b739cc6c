"""A conversation over HTTP with the official client of OpenAI's API: `pip install openai`, then `edgeflow serve`.

python examples/chat.py [--address http://localhost:8000] [--model NAME] "where is the cup?"
"""

from __future__ import annotations

import argparse

import openai


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question")
    parser.add_argument("--address", default="http://localhost:8000")
    parser.add_argument("--model", default="", help="a name of /v1/models, NAME:SLOT for a declared prefix")
    parser.add_argument("--token", default="none", help="needed if the service requires one")
    arguments = parser.parse_args()
    client = openai.OpenAI(base_url=f"{arguments.address}/v1", api_key=arguments.token)
    stream = client.chat.completions.create(
        model=arguments.model,
        messages=[{"role": "user", "content": arguments.question}],
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
