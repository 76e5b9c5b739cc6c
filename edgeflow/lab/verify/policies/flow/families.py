"""Checks of π0, π0.5 and SmolVLA against recorded outputs (verify.py), with their prompts and statistics.

Bundles without processor files have normalised states and normalised chunks only.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edgeflow.engine.flow.frames import FlowSizes
from edgeflow.lab.verify.comparison import Results, Verification
from edgeflow.lab.verify.policies.flow.recorded import STATE as STATE_GIVEN
from edgeflow.lab.verify.policies.flow.recorded import STATE_RAW, TOKENS, RecordedBatch, Tolerances, Values, retokenised
from edgeflow.lab.verify.policies.flow.recorded_runs import CHUNK
from edgeflow.lab.verify.policies.flow.verify import verify_architecture
from edgeflow.policies.flow.policy import FlowArchitecture
from edgeflow.policies.lerobot import STATE, local_folder
from edgeflow.policies.pi.config import PiConfig, read_processors
from edgeflow.policies.pi.config import load_config as load_pi
from edgeflow.policies.pi.network import PiNetwork, bins
from edgeflow.policies.pi.network import architecture_of as architecture_of_pi
from edgeflow.policies.smolvla.config import load_config as load_smolvla
from edgeflow.policies.smolvla.config import with_special_tokens
from edgeflow.policies.smolvla.network import SmolVLANetwork
from edgeflow.policies.smolvla.network import architecture_of as architecture_of_smolvla
from edgeflow.text.tokenizer import TOKENIZER_FILE

PI_TOLERANCES = Tolerances(results=1e-5, relative=1e-5)
RESTORED = "out.action_chunk_unnormalized"
SMOLVLA_TOLERANCES = Tolerances(results=1e-4)


def verify_pi(kind: str, directory: Path, asked: Verification) -> Results:
    """Every comparison of a bundle."""
    config = load_pi(directory, kind)
    architecture = architecture_of_pi(config)
    return verify_architecture(
        directory,
        architecture,
        asked,
        tolerances=PI_TOLERANCES,
        more=lambda network: _PiInputs(directory, config, architecture, network).values,
    )


class _PiInputs:
    """Normalisation, prompts, and the condition of the norms of π0.5."""

    def __init__(
        self, directory: Path, config: PiConfig, architecture: FlowArchitecture[PiNetwork], network: PiNetwork
    ) -> None:
        self._config, self._network = config, network
        self._processors = read_processors(directory, config)
        self._texts = architecture.texts_for(network, self._processors.tokenizer, self._processors.tokens)

    def values(self, recording: RecordedBatch, sizes: FlowSizes) -> dict[str, Tensor]:
        """The values by stored name."""
        stored, normalisation = recording.case.tensors, self._processors.normalisation
        states = stored.get(STATE_RAW, stored[STATE_GIVEN]).float().numpy()
        affine = normalisation.inputs.get(STATE)
        if STATE_RAW in stored and affine is not None:
            states = affine.normalised(states)
        values = {STATE_GIVEN: torch.from_numpy(states)}
        if "task" in recording.values:
            values[TOKENS] = retokenised(recording, self._texts, states)
        if CHUNK in stored:
            chunk, action = stored[CHUNK].double(), normalisation.action
            values[RESTORED] = chunk if action is None else torch.from_numpy(action.restored(chunk.numpy()))
        if self._config.adaptive:
            condition = self._network.condition(sizes.times[:-1].to(self._network.decoder.device)).cpu()
            values["mid.adarms_cond"] = condition[:, None].expand(-1, len(states), -1)
            values["in.state_bins"] = torch.tensor([bins(state) for state in states])
        return values


def verify_smolvla(directory: Path, asked: Verification) -> Results:
    """Every comparison of a bundle."""
    config = with_special_tokens(directory, load_smolvla(directory))
    architecture, folder = architecture_of_smolvla(config), local_folder(directory, config.model)

    def tokens(network: SmolVLANetwork) -> Values:
        """The tokens of texts, if the bundle has the tokenizer."""
        if folder is None or not (folder / TOKENIZER_FILE).is_file():
            return lambda _recording, _sizes: {}
        texts = architecture.texts_for(network, folder, config.flow.prompt)

        def values(recording: RecordedBatch, _: FlowSizes) -> dict[str, Tensor]:
            states = np.empty((len(recording.frames), 0), np.float32)
            return {TOKENS: retokenised(recording, texts, states)}

        return values

    return verify_architecture(directory, architecture, asked, tolerances=SMOLVLA_TOLERANCES, more=tokens)
