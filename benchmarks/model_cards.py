"""The figures of the embedded models' cards: success of the policy in lockstep, and exact answers of the chat models.

    .venv/bin/python -m benchmarks.model_cards --json FILE

The policy is evaluated with its training network, in lockstep with the simulation: object speeds without delay, an age
of 7 ticks with still objects, and each action dimension held at its neutral value. Success in closed loop with the real
scheduler is `benchmarks.closed_loop`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.command import keep, machine_facts, options
from edgeflow.lab.demo.chat.evaluate import HELD_OUT_SEED, evaluate_chat
from edgeflow.lab.demo.lockstep import EpisodeCondition, EpisodeTiming, measure
from edgeflow.lab.demo.training.actions import NAMES
from edgeflow.lab.progress import reporting
from edgeflow.model_paths import (
    EMBEDDED_CHAT,
    EMBEDDED_CHAT_MODEL,
    EMBEDDED_LOG_MODEL,
    EMBEDDED_LOGS,
    EMBEDDED_POLICY,
)
from tests.lab.demo.reference_policy import read_policy

SEEDS = (HELD_OUT_SEED, "another seed")
AGE_TICKS = 7


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    facts, policy = machine_facts(), read_policy(EMBEDDED_POLICY)
    rows: list[dict[str, Any]] = []
    for name, condition, episodes in _conditions(arguments.episodes, arguments.ablation_episodes):
        rate = measure(policy, condition, episodes).rate
        low, high = rate.interval
        rows.append({"condition": name, "successes": rate.successes, "episodes": episodes, "interval_95": [low, high]})
        print(f"policy, {name}: {rate.successes} of {episodes} ({100 * low:.1f} to {100 * high:.1f} %)", flush=True)
    chat = list(_chat(arguments.questions))
    keep(arguments.json, {**facts, "policy": rows, "chat": chat})


def _conditions(episodes: int, ablation_episodes: int) -> Iterator[tuple[str, EpisodeCondition, int]]:
    yield "still objects, no delay", EpisodeCondition(), episodes
    for speed in (0.025, 0.05):
        yield f"objects at {100 * speed:g} cm/s, no delay", EpisodeCondition(object_speed=speed), episodes
    yield f"still objects, age {AGE_TICKS} ticks", EpisodeCondition(timing=EpisodeTiming(age_ticks=AGE_TICKS)), episodes
    for index, name in enumerate(NAMES):
        yield f"still objects, {name} neutral", EpisodeCondition(dropped=index), ablation_episodes


def _chat(questions: int) -> Iterator[dict[str, Any]]:
    """Exact answers of each chat model about single states, by seed of the questions."""
    for name, folder in ((EMBEDDED_CHAT, EMBEDDED_CHAT_MODEL), (EMBEDDED_LOGS, EMBEDDED_LOG_MODEL)):
        for seed in SEEDS:
            exact = _exact(folder, questions, seed)
            print(f"{name}, seed {seed!r}: {exact} of {questions} answers exact", flush=True)
            yield {"model": name, "seed": seed, "exact": exact, "questions": questions}


def _exact(folder: Path, questions: int, seed: str) -> int:
    with reporting(Console(stderr=True)) as report:
        result = evaluate_chat(folder, questions, seed, progress=lambda done: report("questions", done, questions))
    return len(result.graded) - len(result.wrong)


def _arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--episodes", type=int, default=200, help="per condition of the policy")
    parser.add_argument("--ablation-episodes", type=int, default=12, help="per action dimension held at neutral")
    parser.add_argument("--questions", type=int, default=500, help="per seed of the chat evaluation")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    return parser.parse_args()


if __name__ == "__main__":
    main()
