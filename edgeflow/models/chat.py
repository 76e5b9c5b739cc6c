"""A chat model from a published checkpoint of the families that are served, with its tokenizer and chat template."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.kernels.table.operator_table import OperatorTable
from edgeflow.models.checkpoint import Weights
from edgeflow.models.llama import LlamaConfig, LlamaDecoder
from edgeflow.models.network import TokenNetwork
from edgeflow.models.prompt import PlacedImage, Prompt, mrope_positions
from edgeflow.models.published import GenerationConfig, read_published
from edgeflow.models.qwen2_5_vl import ImagePreprocessor, ImageRules, Qwen2_5VisionTower, VisionConfig
from edgeflow.text.chat_template import ChatTemplate
from edgeflow.text.tokenizer import Marks, TextTokenizer
from edgeflow.text.weight_files import find_weights
from edgeflow_client.errors import CheckpointError, InvalidArgument

# Where checkpoints keep their parts: the decoder's stem and the tower's prefix, by transformers' version.
STEMS = (("model.", "visual."), ("model.language_model.", "model.visual."))


NO_END = (
    "chat.model: no token ends an answer: neither generation_config.json nor config.json has an eos_token_id, and "
    "tokenizer_config.json names no eos_token; answers end at max_tokens or at a stop text"
)


class TextNetwork(TokenNetwork, Protocol):
    """A network whose prompts are tokens."""

    @property
    def config(self) -> LlamaConfig: ...

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of keys, values and logits."""
        ...

    @property
    def prompt_row(self) -> tuple[int, torch.dtype]:
        """W, the width of a prompt's row, and its dtype."""
        ...

    def prompt_rows(self, ids: Tensor) -> Tensor:
        """[n] → rows of a prompt [n, W], as `next_logits` takes them"""
        ...


@dataclass(frozen=True, slots=True)
class ChatVision:
    """The vision part of a model: tower, preprocessor, and the token id that marks an image's place."""

    tower: Qwen2_5VisionTower
    preprocessor: ImagePreprocessor
    image_token: int


class ChatModel:
    """A network with its tokenizer, chat template and vision tower: prompts in, rows of the network out.

    name: the architecture's family. tokenizer, template, vision: None where there is none; prompts are token ids then.
    remarks: on its files, for the start.
    """

    def __init__(
        self,
        *,
        name: str,
        network: TextNetwork,
        tokenizer: TextTokenizer | None,
        template: ChatTemplate | None,
        generation: GenerationConfig,
        vision: ChatVision | None,
        device: torch.device,
        remarks: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.network = network
        self._tokenizer = tokenizer
        self.template = template
        self.generation = generation
        self.vision = vision
        self.device = device
        self._remarks = remarks

    @property
    def config(self) -> LlamaConfig:
        return self.network.config

    @property
    def decoder(self) -> LlamaDecoder:
        """The network of a published checkpoint; ValueError for exported graphs."""
        if not isinstance(self.network, LlamaDecoder):
            raise ValueError("exported graphs have no decoder: ask the network for logits")
        return self.network

    @property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer; ValueError for a model loaded without one."""
        if self._tokenizer is None:
            raise ValueError("this model was loaded without its tokenizer: give it token ids")
        return self._tokenizer

    @property
    def stop_ids(self) -> frozenset[int]:
        """The tokens that end an answer: those of the configuration, and the tokenizer's own end of text.

        Models made for chat from others often name the end of a turn only in the tokenizer's files."""
        own = self._tokenizer.end if self._tokenizer is not None else None
        ends = self.generation.stop_ids | ({own} if own is not None else set())
        return frozenset(each for each in ends if each < self.config.vocab_size)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Warnings for the start: remarks on the files, and on a model whose answers nothing ends."""
        return self._remarks if self.stop_ids else (*self._remarks, NO_END)

    def render(self, messages: Sequence[Mapping[str, Any]], *, answer: bool = True, **options: Any) -> str:
        """Render messages as the text of a prompt; InvalidArgument where the checkpoint has no chat template."""
        if self.template is None:
            raise InvalidArgument("this model has no chat template: send a plain prompt", field="messages")
        return self.template(messages, answer=answer, **options)

    def chat_prompt(self, text: str, images: Sequence[NDArray[np.uint8]] = ()) -> Prompt:
        """The prompt of rendered messages. images: RGB [H, W, 3], one per image place in the text."""
        return self.prompt(self.tokenizer.encode(text, special=False), images)

    def messages_prompt(self, messages: Sequence[Mapping[str, Any]]) -> Prompt:
        """The prompt of messages, in which special tokens are plain text, as the service reads them."""
        marks = Marks(self.tokenizer.special)
        text = self.render(marks.hide(list(messages)))
        if not marks.any:
            return self.chat_prompt(text)
        return self.prompt(self.tokenizer.encode_rendered(text, marks))

    def text_prompt(self, text: str) -> Prompt:
        """The prompt of a plain text to continue, with the special tokens that the tokenizer puts before a text."""
        return self.prompt(self.tokenizer.encode(text, special=True))

    def prompt(self, ids: Sequence[int], images: Sequence[NDArray[np.uint8]] = ()) -> Prompt:
        """The prompt of token ids, one per image place; InvalidArgument where they are empty or out of range."""
        if not ids:
            raise InvalidArgument("the prompt is empty", field="prompt")
        if not 0 <= min(ids) <= max(ids) < self.config.vocab_size:
            raise InvalidArgument(f"token ids must be 0 to {self.config.vocab_size - 1}", field="prompt")
        if self.vision is not None:
            return self._with_images(ids, images, self.vision)
        if images:
            raise InvalidArgument("this model does not support images", field="messages")
        return Prompt(tuple(ids), torch.arange(len(ids))[None])

    def prompt_rows(self, prompt: Prompt, start: int = 0) -> Tensor:
        """Rows start .. L_P of a prompt [n, W], as the network takes them."""
        return PromptRows(self, prompt).take(start, len(prompt))

    def embed(self, ids: Sequence[int]) -> Tensor:
        """Embed token ids: [n, E]"""
        return self.decoder.embed(torch.tensor(ids, dtype=torch.long, device=self.device))

    def _with_images(self, ids: Sequence[int], images: Sequence[NDArray[np.uint8]], vision: ChatVision) -> Prompt:
        """A prompt in which each image place is replaced by the rows of its image."""
        wanted = ids.count(vision.image_token)
        if wanted != len(images):
            raise InvalidArgument(f"{len(images)} images for {wanted} places in the text", field="messages")
        rows: list[int] = []
        placed: list[PlacedImage] = []
        waiting = map(vision.preprocessor, images)
        for token in ids:
            if token == vision.image_token:
                patches = next(waiting)
                placed.append(PlacedImage(len(rows), math.prod(patches.merged_grid), patches))
                rows += [token] * placed[-1].rows
            else:
                rows.append(token)
        positions, shift = mrope_positions(len(rows), [(each.start, each.patches.merged_grid) for each in placed])
        return Prompt(tuple(rows), positions, shift, tuple(placed))


class PromptRows:
    """A prompt's rows, taken chunk by chunk; an image is encoded when its first row is taken."""

    def __init__(self, model: ChatModel, prompt: Prompt) -> None:
        self._model = model
        self._prompt = prompt
        self._encoded: tuple[PlacedImage, Tensor] | None = None  # the image that was taken from last

    def take(self, start: int, stop: int) -> Tensor:
        """The rows start .. stop [n, W], as the network takes them."""
        ids = torch.tensor(self._prompt.ids[start:stop], dtype=torch.long, device=self._model.device)
        rows = self._model.network.prompt_rows(ids)
        for image in self._prompt.images:
            first, last = max(start, image.start), min(stop, image.end)
            if first < last:
                rows[first - start : last - start] = self._encode(image)[first - image.start : last - image.start]
        return rows

    def _encode(self, image: PlacedImage) -> Tensor:
        if self._encoded is None or self._encoded[0] is not image:
            if self._model.vision is None:
                raise ValueError("a prompt with images belongs to a model with a vision tower")
            self._encoded = image, self._model.vision.tower.forward(image.patches)
        return self._encoded[1]


def load_chat_model(
    path: Path, dtype: torch.dtype, device: torch.device, *, text: bool = True, **decoder_options: Any
) -> ChatModel:
    """Load a checkpoint directory; CheckpointError says what is wrong with it.

    text: False leaves tokenizer and chat template out, which the directory then needs not have.
    """
    path = Path(path)
    published = read_published(path)
    tokenizer = TextTokenizer(path, published.text.vocab_size) if text else None
    template = ChatTemplate.load(path) if text else None
    weights = Weights(path, dtype, device)
    stem, prefix = stems_of(weights)
    decoder = LlamaDecoder(published.text, weights, stem=stem, name=published.family, **decoder_options)
    vision = None
    if published.vision is not None:
        vision = _load_vision(*published.vision, weights.under(prefix), published.text, decoder_options.get("table"))
    return ChatModel(
        name=published.family,
        network=decoder,
        tokenizer=tokenizer,
        template=template,
        generation=published.generation,
        vision=vision,
        device=device,
        remarks=tuple(filter(None, [find_weights(path).remark])),
    )


def _load_vision(
    config: VisionConfig, rules: ImageRules, weights: Weights, text: LlamaConfig, table: OperatorTable | None
) -> ChatVision:
    if config.out_hidden_size != text.hidden_size or config.image_token >= text.vocab_size:
        raise CheckpointError(
            f"vision_config.out_hidden_size {config.out_hidden_size} or image_token_id {config.image_token} does not "
            f"fit a decoder of hidden_size {text.hidden_size} and vocab_size {text.vocab_size}"
        )
    return ChatVision(Qwen2_5VisionTower(weights, config, table), ImagePreprocessor(rules, config), config.image_token)


def stems_of(weights: Weights) -> tuple[str, str]:
    """The beginnings of the names of the decoder's tensors, and of the others'."""
    for stem, prefix in reversed(STEMS):
        if f"{stem}embed_tokens.weight" in weights:
            return stem, prefix
    return STEMS[0]
