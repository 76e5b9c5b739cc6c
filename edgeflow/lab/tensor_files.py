"""Writing of safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file under another name first, so that it is whole or absent.

    The library gives its files mode 0600; this one gets that of any new file."""
    draft = path.with_name(path.name + ".partial")
    draft.unlink(missing_ok=True)
    draft.touch()
    mode = draft.stat().st_mode & 0o777
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, draft, dict(metadata))
    draft.chmod(mode)
    draft.replace(path)
