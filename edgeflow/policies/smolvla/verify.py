"""Checks of SmolVLA against recorded outputs (policies/flow/verify.py).

Bundles without processor files have normalised states and normalised chunks alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edgeflow.engine.flow.policy import FlowSizes
from edgeflow.engine.policy import Placement
from edgeflow.engine.table import operator_table
from edgeflow.policies.family import Verification
from edgeflow.policies.flow.images import Margin
from edgeflow.policies.flow.prompts import TaskTexts, TokenizedTexts
from edgeflow.policies.flow.recorded import TOKENS, Recording, retokenised
from edgeflow.policies.flow.subject import Results, Subject, Tolerances
from edgeflow.policies.flow.verify import modes_of, verify_subject
from edgeflow.policies.lerobot.folders import local_folder
from edgeflow.policies.smolvla.config import SmolVLAConfig, load_config
from edgeflow.policies.smolvla.network import SmolVLANetwork, read_network, sizes_of
from edgeflow.text.tokenizer import TOKENIZER_FILE

TOLERANCES = Tolerances(results=1e-4)


def verify(directory: Path, asked: Verification) -> Results:
    """Every comparison of a bundle."""
    modes = modes_of(asked, "smolvla")
    config = load_config(directory)
    table = operator_table(asked.operators, "float", asked.device, torch.float32)
    network = read_network(directory, config, Placement(dtype=torch.float32, device=asked.device, table=table))
    subject = Subject(
        directory=directory,
        config=config.flow,
        sizes=sizes_of(config),
        network=network,
        margin=Margin.LEFT_TOP,
        tolerances=TOLERANCES,
        more=_Inputs(directory, config, network).values,
    )
    return verify_subject(subject, asked, modes)


class _Inputs:
    """Texts, where the bundle has the tokenizer."""

    def __init__(self, directory: Path, config: SmolVLAConfig, network: SmolVLANetwork) -> None:
        folder = local_folder(directory, config.model)
        self._texts = None
        if folder is not None and (folder / TOKENIZER_FILE).is_file():
            self._texts = TaskTexts(TokenizedTexts(folder, config.flow.prompt, len(network.prefix.table)))

    def values(self, recording: Recording, sizes: FlowSizes) -> dict[str, Tensor]:  # noqa: ARG002
        """By stored name."""
        states = np.empty((len(recording.frames), 0), np.float32)
        return {} if self._texts is None else {TOKENS: retokenised(recording, self._texts, states)}
