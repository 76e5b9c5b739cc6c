"""Checks of SmolVLA against recorded outputs (policies/flow/verify.py).

Bundles without processor files have normalised states and normalised chunks alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from edgeflow.engine.flow.frames import FlowSizes
from edgeflow.lab.verify.comparison import Results, Verification
from edgeflow.lab.verify.policies.flow.recorded import TOKENS, Recording, Tolerances, Values, retokenised
from edgeflow.lab.verify.policies.flow.verify import verify_architecture
from edgeflow.policies.lerobot import local_folder
from edgeflow.policies.smolvla.config import load_config
from edgeflow.policies.smolvla.network import SmolVLANetwork, architecture_of
from edgeflow.text.tokenizer import TOKENIZER_FILE

TOLERANCES = Tolerances(results=1e-4)


def verify(directory: Path, asked: Verification) -> Results:
    """Every comparison of a bundle."""
    config = load_config(directory)
    architecture, folder = architecture_of(config), local_folder(directory, config.model)

    def tokens(network: SmolVLANetwork) -> Values:
        """The tokens of texts, where the bundle has the tokenizer."""
        if folder is None or not (folder / TOKENIZER_FILE).is_file():
            return lambda _recording, _sizes: {}
        texts = architecture.texts_for(network, folder, config.flow.prompt)

        def values(recording: Recording, _: FlowSizes) -> dict[str, Tensor]:
            states = np.empty((len(recording.frames), 0), np.float32)
            return {TOKENS: retokenised(recording, texts, states)}

        return values

    return verify_architecture(directory, architecture, asked, tolerances=TOLERANCES, more=tokens)
