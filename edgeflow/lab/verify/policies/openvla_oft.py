"""Checks of an OpenVLA-OFT checkpoint against outputs recorded from the original implementation, in float32.

A bundle's `cases.json` has the constants that the original chose by its command line, and the cases: images,
instruction, and whether state and action head took part. `expected.safetensors` holds tensors as
`<case>.<in|mid|out>.<quantity>`.

Compared where the bundle records it: prompt and text ids, pixel values, the state as it is normalised, projected
patches, all rows before and after the language model, the rows that are read, their largest logits and the tokens,
normalised actions and actions, of each frame by itself and of frames of several robots in one pass, and actions as they
are served, cut to the limits. A stored value that is not compared is infinitely off.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.contract import Image, Observation
from edgeflow.engine.placement import operator_table
from edgeflow.kernels.table.operator_table import OperatorTable
from edgeflow.lab.verify.bundle import CASES_FILE, TENSORS_FILE, RecordedCase, read_cases, read_image
from edgeflow.lab.verify.comparison import CheckResult, Results, Verification, compare, mismatches
from edgeflow.lab.verify.offline import run_once
from edgeflow.models.checkpoint import Weights, tensor_shapes_of
from edgeflow.models.llama import LlamaDecoder
from edgeflow.policies.openvla.config import OpenVLAConfig, load_config
from edgeflow.policies.openvla.network import OpenVLAVision
from edgeflow.policies.openvla.tokens import Prompter, prompt_text
from edgeflow.policies.openvla_oft.config import MOST, PRESETS, OFTSettings, VectorBounds, find_files, read_statistics
from edgeflow.policies.openvla_oft.network import OFTNetwork
from edgeflow.policies.openvla_oft.policy import OFTFrame, OpenVLAOFTPolicy, read_head, read_proprio
from edgeflow.policies.tensors import placed
from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import CheckpointError, ConfigError

_BOUNDS = {"bounds_q99": "q99", "bounds": "min_max"}
_CUSTOMARY_RATE_HZ = 10.0  # rate of a platform without preset; recorded values do not depend on it
MODE = "one pass"
GIVEN = ("in.input_ids", "in.proprio_raw")
"""Inputs, which are not compared."""
ACTIONS = "out.actions"
LARGEST = ("mid.action_logits_top32_ids", "mid.action_logits_top32_values")
TOLERANCE = 1e-4
"""Absolute tolerance, as the bundles state it."""
PIXEL_TOLERANCE = 1e-6
LARGEST_MARGIN = 1e9
SPACE_ID = 29871
"""Llama 2's space, with which prompts end; used if a bundle has no tokenizer."""
_IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
_SYMMETRIC = {"mean": [0.5] * 3, "std": [0.5] * 3}
NORMALISATIONS = {"dinov2": _IMAGENET, "siglip": _SYMMETRIC}


@dataclass(frozen=True, slots=True, kw_only=True)
class OFTCase:
    """A recorded case."""

    name: str
    images: list[NDArray[np.uint8]]
    """RGB [H, W, 3] each."""
    instruction: str
    unnorm_key: str
    proprio: bool
    action_head: bool
    """Both: whether they were used."""
    values: Mapping[str, Any]
    """Its entry in cases.json."""
    tensors: Mapping[str, Tensor]
    """By `<in|mid|out>.<quantity>`."""

    @property
    def input_ids(self) -> tuple[int, ...]:
        """The prompt's text ids as recorded; CheckpointError if they are not integers."""
        ids = self.tensor("in.input_ids").flatten()
        if ids.dtype not in (torch.int64, torch.int32) or not len(ids):
            raise CheckpointError(f"{TENSORS_FILE}: {self.name}.in.input_ids has {len(ids)} values of {ids.dtype}")
        return tuple(ids.tolist())

    @property
    def raw_state(self) -> tuple[float, ...]:
        """The state as it was given, in the data's units; CheckpointError if it is not a vector."""
        raw = self.tensor("in.proprio_raw")
        if raw.dim() != 1:
            raise CheckpointError(f"{TENSORS_FILE}: {self.name}.in.proprio_raw has shape {list(raw.shape)}")
        return tuple(raw.tolist())

    def tensor(self, name: str) -> Tensor:
        """A required tensor."""
        if name not in self.tensors:
            raise CheckpointError(f"{TENSORS_FILE} lacks {self.name}.{name}: name the directory of a bundle")
        return self.tensors[name]


@dataclass(frozen=True, slots=True)
class OFTBundle:
    """A recording of OpenVLA-OFT."""

    constants: Mapping[str, Any]
    """The settings of all cases, except images, proprio and action_head."""
    cases: list[OFTCase]
    strays: tuple[str, ...] = ()
    """Names of tensors that belong to no case."""

    def settings(self, case: OFTCase) -> OFTSettings:
        """The settings that a case was recorded with."""
        proprio = self.constants["proprio"] if case.proprio else 0
        names = [f"image_{index}" for index in range(len(case.images))]
        own = {"images": len(names), "camera_names": names, "proprio": proprio, "action_head": case.action_head}
        return OFTSettings.of({**self.constants, **own, "dataset": case.unnorm_key})


def read_oft_bundle(directory: Path) -> OFTBundle:
    """Read all cases; CheckpointError names the case and the wrong entry."""
    values = read_json(directory / CASES_FILE)
    cases = [_case(directory, each, values.get("unnorm_key")) for each in read_cases(directory)]
    prefixes = tuple(f"{case.name}." for case in cases)
    strays = tuple(sorted(each for each in tensor_shapes_of(directory / TENSORS_FILE) if not each.startswith(prefixes)))
    return OFTBundle(_constants(values.get("constants")), cases, strays)


def _constants(values: Any) -> dict[str, Any]:
    where = f"{CASES_FILE} constants"
    if not isinstance(values, Mapping):
        raise CheckpointError(f"{where} must be an object")
    names = {"chunk": "NUM_ACTIONS_CHUNK", "dims": "ACTION_DIM", "proprio": "PROPRIO_DIM"}
    for key, name in names.items():
        if type(values.get(name)) is not int or not 1 <= values[name] <= MOST[key]:
            raise CheckpointError(f"{where}.{name} must be an integer, 1 to {MOST[key]}")
    bounds = values.get("normalization")
    if not isinstance(bounds, str) or bounds not in _BOUNDS:
        raise CheckpointError(f"{where}.normalization: {bounds!r} is not one of {', '.join(_BOUNDS)}")
    preset = PRESETS.get(str(values.get("platform")).lower(), {})
    found = {key: values[name] for key, name in names.items()}
    return {**found, "bounds": _BOUNDS[bounds], "control_rate_hz": preset.get("control_rate_hz", _CUSTOMARY_RATE_HZ)}


def _case(directory: Path, recorded: RecordedCase, key: Any) -> OFTCase:
    entry, where = recorded.entry, recorded.entry.where
    values, images = entry.values(), entry.texts("images")
    flags: dict[str, Any] = {flag: values.get(flag) for flag in ("proprio", "action_head")}
    for flag, value in flags.items():
        if not isinstance(value, bool):
            raise CheckpointError(f"{where}.{flag} must be true or false")
    if not 1 <= len(images) <= MOST["images"] or values.get("num_images", len(images)) != len(images):
        raise CheckpointError(
            f"{where}.images: {len(images)} images of at most {MOST['images']}, num_images is "
            f"{values.get('num_images')}"
        )
    unnorm_key = values.get("unnorm_key", key)
    if not isinstance(unnorm_key, str):
        raise CheckpointError(f"{where}.unnorm_key must be text")
    return OFTCase(
        name=recorded.name,
        images=[read_image(directory / image) for image in images],
        instruction=entry.text("instruction"),
        unnorm_key=unnorm_key,
        **flags,
        values=values,
        tensors=recorded.tensors,
    )


def verify(directory: Path, asked: Verification) -> Results:
    """Every comparison of a bundle, case by case; ConfigError for weights, which this family does not have."""
    if asked.weights != "float":
        raise ConfigError(f"weights: {asked.weights} is not measured for openvla_oft")
    bundle = read_oft_bundle(directory)
    table = operator_table(asked.operators, "float", asked.device, torch.float32)
    with torch.inference_mode():
        subjects = _subjects(directory, bundle, table, asked.device)
        together = _together(subjects)
        results: list[CheckResult] = []
        for index, subject in enumerate(subjects):
            asked.progress(subject.case.name, index, len(subjects))
            results += _check_inputs(subject)
            results += _check_rows(subject)
            results += _check_answer(subject, together[subject.case.name])
            results += _unknown(subject.case.name, subject.case.tensors.keys() - {*GIVEN, *subject.compared})
    for name in bundle.strays:
        results += _unknown(name.partition(".")[0], [name.partition(".")[2]])
    return [(MODE, result) for result in results]


def _unknown(case: str, names: Iterable[str]) -> Iterator[CheckResult]:
    """Stored values that were not compared with anything."""
    for name in sorted(names):
        yield CheckResult(case, f"unknown {name}", math.inf, TOLERANCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """A case, the policy with its settings, which cases of equal settings share, and the case's prepared frame."""

    case: OFTCase
    policy: OpenVLAOFTPolicy
    frame: OFTFrame
    action: VectorBounds
    tokenised: tuple[int, ...] | None
    """The text ids, if the bundle has a tokenizer."""
    compared: set[str] = field(default_factory=set)
    """Names of the stored tensors that were compared."""

    def checked(self, quantity: str, name: str, found: Tensor, tolerance: float = TOLERANCE) -> Iterator[CheckResult]:
        """Compare `found` with the recorded tensor of that name, if there is one."""
        if name in self.case.tensors:
            self.compared.add(name)
            yield compare(self.case.name, quantity, found, self.case.tensors[name], tolerance)


def _subjects(directory: Path, bundle: OFTBundle, table: OperatorTable, device: torch.device) -> list[_Subject]:
    config = load_config(directory, processor=_processor(directory))
    weights = Weights(directory, torch.float32, device)
    shared = _SharedParts(
        directory,
        config,
        weights,
        LlamaDecoder(config.text, weights.under("language_model."), table=table),
        OpenVLAVision(config, weights, table),
    )
    prompter = Prompter(directory, vicuna=config.vicuna_prompt) if (directory / "tokenizer.json").is_file() else None
    policies: dict[str, OpenVLAOFTPolicy] = {}
    subjects = []
    for case in bundle.cases:
        settings = bundle.settings(case)
        key = settings.model_dump_json()
        if key not in policies:
            policies[key] = shared.policy(settings)
        case.tensor(ACTIONS)
        action = read_statistics(directory, settings).actions[case.unnorm_key]
        tokenised = prompter.ids(case.instruction) if prompter else None
        frame = _frame(case, policies[key], tokenised)
        subjects.append(_Subject(case=case, policy=policies[key], frame=frame, action=action, tokenised=tokenised))
    return subjects


@dataclass(frozen=True, slots=True)
class _SharedParts:
    """The parts of a checkpoint that policies with different settings share."""

    directory: Path
    config: OpenVLAConfig
    weights: Weights
    decoder: LlamaDecoder
    vision: OpenVLAVision

    def policy(self, settings: OFTSettings) -> OpenVLAOFTPolicy:
        """A policy that receives ids."""
        statistics = read_statistics(self.directory, settings)
        files, width = find_files(self.directory, settings), self.config.text.hidden_size
        network = OFTNetwork(
            self.decoder,
            self.vision,
            self.weights.device,
            head=read_head(files.head, self.weights, settings.dims, width),
            proprio=read_proprio(files.proprio, self.weights, settings.proprio, width),
        )
        return OpenVLAOFTPolicy(self.config, settings, statistics, network, lambda _: ())


def _processor(directory: Path) -> dict[str, Any]:
    """preprocessor_config.json, or the published towers' values if a bundle has none."""
    name = "preprocessor_config.json"
    if (directory / name).is_file():
        return read_json(directory / name)
    towers = read_json(directory / "config.json").get("timm_model_ids")
    found = []
    for tower in towers if isinstance(towers, list) else [""]:
        known = next((values for part, values in NORMALISATIONS.items() if part in str(tower)), None)
        if known is None:
            raise CheckpointError(f"{directory} has no {name}, and the normalisation of tower {tower!r} is not known")
        found.append(known)
    return {"tvf_normalize_params": found}


def _frame(case: OFTCase, policy: OpenVLAOFTPolicy, tokenised: tuple[int, ...] | None) -> OFTFrame:
    """The frame prepared by the policy, with the recorded ids and the space after them."""
    ids, vocabulary = case.input_ids, policy.network.decoder.config.vocab_size
    if not all(0 <= each < vocabulary for each in ids):
        raise CheckpointError(f"{case.name}.in.input_ids has ids beyond the vocabulary of {vocabulary}")
    space = tokenised[-1] if tokenised else SPACE_ID
    raw = case.raw_state if case.proprio else ()
    images = {
        name: Image(image.shape[0], image.shape[1], image.tobytes())
        for name, image in zip(policy.settings.cameras, case.images, strict=True)
    }
    if len(raw) != policy.settings.proprio:
        raise CheckpointError(f"{case.name}.in.proprio_raw has {len(raw)} numbers, expected {policy.settings.proprio}")
    prepared = policy.prepare(Observation(images=images, instruction=case.instruction, state={"state": raw}))
    return OFTFrame(prepared.pixel_values, ids if ids[-1:] == (space,) else (*ids, space), prepared.state)


def _check_inputs(subject: _Subject) -> Iterator[CheckResult]:
    case, frame = subject.case, subject.frame
    prompt = case.values.get("prompt")
    if isinstance(prompt, str):
        found = prompt_text(case.instruction, vicuna=prompt.startswith("A chat"))
        yield CheckResult(case.name, "prompt", float(found != prompt), 0)
    if subject.tokenised is not None:
        yield CheckResult(case.name, "input ids", mismatches(subject.tokenised, frame.prompt_ids), 0)
    count = case.values.get("n_prompt_ids")
    if isinstance(count, int):
        yield CheckResult(case.name, "number of ids", abs(len(case.input_ids) - count), 0)
    yield from subject.checked("pixel values", "in.pixel_values", frame.pixel_values[None], PIXEL_TOLERANCE)
    if frame.state is not None:
        yield from subject.checked("normalised state", "in.proprio", frame.state)


def _check_rows(subject: _Subject) -> Iterator[CheckResult]:
    """Compare all rows, before and after the language model, and those that are read."""
    policy, network = subject.policy, subject.policy.network
    pixels = subject.frame.pixel_values[None].to(policy.device)
    yield from subject.checked("projected patches", "mid.projected_patches", network.image_rows(pixels))
    batch = [placed(each, policy.device) for each in policy.batch([subject.frame], len(subject.frame.prompt_ids))]
    rows = network.embed(batch, policy.numbers)
    yield from subject.checked("input rows", "mid.lm_inputs_embeds", rows)
    length = subject.case.values.get("sequence_length")
    if isinstance(length, int):
        yield CheckResult(subject.case.name, "number of rows", abs(len(rows[0]) - length), 0)
    layout, kv = network.layout(rows, batch, policy.numbers, on_host=True), network.reserve(1, len(rows[0]))
    hidden = network.decoder.final_norm(network.decoder.forward(rows[0], layout, kv), "prefill")
    yield from subject.checked("last hidden", "mid.lm_last_hidden", hidden[None])
    read = network.read_out(batch, policy.numbers, on_host=True)
    normed = network.decoder.final_norm(read, "prefill")
    yield from subject.checked("hidden states of actions", "mid.actions_hidden_states", normed[None])
    yield from _check_logits(subject, network.decoder.logits(read, "prefill").cpu())


def _check_logits(subject: _Subject, logits: Tensor) -> Iterator[CheckResult]:
    """Compare the recorded largest logits [n, 32], their order, the margin of the largest, and the tokens."""
    case = subject.case
    ids, values = (case.tensors.get(name) for name in LARGEST)
    if ids is not None and values is not None:
        subject.compared.update(LARGEST)
        fits = ids.dtype == torch.int64 and ids.dim() == 2 and len(ids) == len(logits) and values.shape == ids.shape
        if not fits or not ids.numel() or bool(((ids < 0) | (ids >= logits.shape[1])).any()):
            yield CheckResult(case.name, "largest logits", math.inf, TOLERANCE)
        else:
            yield from subject.checked("largest logits", LARGEST[1], logits.gather(1, ids))
            rest = logits.scatter(1, ids, -torch.inf).amax(1) - values.amin(1)
            yield CheckResult(case.name, "ids of the largest logits", max(rest.max().item(), 0.0), TOLERANCE)
    margin = case.values.get("min_top1_top2_margin")
    if isinstance(margin, int | float) and not isinstance(margin, bool):
        top = logits.topk(2).values
        found = (top[:, 0] - top[:, 1]).min().item()
        off = abs(found - margin) if abs(margin) < LARGEST_MARGIN else math.inf
        yield CheckResult(case.name, "margin of the largest logits", off, TOLERANCE)
    tokens = case.values.get("token_ids")
    if isinstance(tokens, list):
        yield CheckResult(case.name, "action tokens", mismatches(logits.argmax(-1).tolist(), tokens), 0)


def _together(subjects: list[_Subject]) -> dict[str, Tensor]:
    """The chunk of each case in one pass with all cases of its settings, like frames of several robots."""
    found: dict[str, Tensor] = {}
    for policy in {id(each.policy): each.policy for each in subjects}.values():
        alike = [each for each in subjects if each.policy is policy]
        longest = max(len(each.frame.prompt_ids) for each in alike)
        policy.network.reserve(len(alike), policy.fixed_rows + longest)
        chunks = run_once(policy, [each.frame for each in alike]).cpu()
        found |= {each.case.name: chunk for each, chunk in zip(alike, chunks, strict=True)}
    return found


def _check_answer(subject: _Subject, together: Tensor) -> Iterator[CheckResult]:
    """Compare the chunk, of the frame by itself and with others."""
    case, policy = subject.case, subject.policy
    (alone,) = run_once(policy, [subject.frame]).cpu()
    found = torch.stack([alone, together])
    yield from subject.checked("normalised actions", "out.actions_normalized", found)
    actions = torch.from_numpy(subject.action.unnormalised(found.double().numpy()))
    yield from subject.checked("actions", ACTIONS, actions)
    served = torch.stack([torch.from_numpy(policy.actions(each, case.unnorm_key)) for each in found.double().numpy()])
    recorded = torch.from_numpy(subject.action.within_limits(case.tensor(ACTIONS).double().numpy()))
    yield compare(case.name, "served actions", served, recorded, TOLERANCE)
    shape = case.values.get("actions_shape")
    if isinstance(shape, list):
        yield CheckResult(case.name, "shape of the chunk", float(list(alone.shape) != shape), 0)
