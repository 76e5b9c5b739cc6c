"""Repositories of the hub: fetched into its cache or a folder, and what to do where that fails. Torch-free."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from edgeflow_client.errors import CheckpointError

HUB_FILES = ("*.json", "*.safetensors", "*.model", "tokenizer*", "*.txt", "*.jinja", "*_checkpoint.pt")
"""The files of a checkpoint that are fetched: weights and texts, no code."""
HEAD_FILES = ("*.json", "*.safetensors", "pytorch_model.bin")
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
ANSWER_S = 10.0
"""Seconds that the hub may take to answer."""
SHOWN = 200  # characters of an error of the hub's library
LOG_IN = "run `hf auth login`"


def cached(name: str, files: Sequence[str] = HUB_FILES, needed: str = "config.json") -> Path | None:
    """The folder of a repository in the hub's cache; None where it has not been fetched. Opens no connection.

    needed: the file without which it counts as not fetched.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, allow_patterns=list(files), local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    return folder if (folder / needed).is_file() else None


def fetch(name: str, key: str, files: Sequence[str] = HUB_FILES, folder: Path | None = None) -> Path:
    """Fetch a repository, or what is new in it, and return its folder; an interrupted download is resumed.

    folder: where to; None = the hub's cache. CheckpointError says why the repository cannot be had and what to do. key:
    of the configuration, by which errors name it.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():  # a log, whose lines are JSON
        disable_progress_bars()
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        HfApi().model_info(name, timeout=ANSWER_S)  # where this fails, the next line may return a folder of any age
        return Path(snapshot_download(name, allow_patterns=list(files), local_dir=folder, etag_timeout=ANSWER_S))
    except Exception as error:  # among them those of HTTP libraries that differ between the hub's versions
        raise CheckpointError(f"{key}: {_cause(name, error)}") from error


def _cause(name: str, error: Exception) -> str:
    """Why a repository cannot be fetched, and what to do."""
    from huggingface_hub import constants, get_token
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    page, has_token = f"{constants.ENDPOINT}/{name}", get_token() is not None
    status: int = getattr(getattr(error, "response", None), "status_code", 0)
    if isinstance(error, GatedRepoError):
        if has_token:
            return f"{name} is gated, and your token has no access to it: request access at {page}"
        return f"{name} is gated: request access at {page}, then {LOG_IN}"
    if status == 401 and has_token:
        return f"the hub does not accept your token, asked for {name}: {LOG_IN} with a new one, or unset HF_TOKEN"
    if isinstance(error, RevisionNotFoundError):
        return f"{name} has no revision main on the hub: check the name at {page}"
    if isinstance(error, RepositoryNotFoundError):
        return f"the hub has no model {name} that you may see: check the name at {page}; if it is private, {LOG_IN}"
    if status:
        return f"{name} could not be fetched, the hub answered {status}: try again later"
    if isinstance(error, HFValidationError):
        return f"{name} is not the name of a repository: give OWNER/NAME"
    if isinstance(error, OSError) and error.errno and error.strerror and not isinstance(error, ConnectionError):
        return f"{name} could not be fetched: {error.strerror}"
    if isinstance(error, ValueError) and not isinstance(error, OSError):
        return f"{name} could not be fetched: {' '.join(str(error).split())[:SHOWN]}"
    offline = f"{constants.ENDPOINT} cannot be reached: go online"
    return (
        f"{name} could not be fetched, {'HF_HUB_OFFLINE is set: unset it' if constants.HF_HUB_OFFLINE else offline}, "
        "or run `edgeflow pull` with `--to FOLDER` on another machine, copy that folder and give it"
    )
