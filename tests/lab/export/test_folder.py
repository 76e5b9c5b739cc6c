"""The folder of an artifact: what it keeps of its checkpoint, and how a new one takes the place of an earlier one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edgeflow.artifacts.manifest import MANIFEST, is_artifact
from edgeflow.lab.export.folder import DRAFT, check_out, copy_texts, replacing
from edgeflow.text.weight_files import find_weights
from edgeflow_client.errors import CheckpointError, ConfigError


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)


def names(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}


def earlier(out: Path) -> None:
    """An artifact, with what another tool made of it."""
    with replacing(out) as draft:
        write(draft, artifact_json="{}", step_onnx="old", weights_data="old", config_json="{}", edgeflow_json="{}")
        (draft / "vlm").mkdir()
        write(draft / "vlm", tokenizer_json="old")
    write(out, compiled_bin="kept")


def test_an_earlier_artifact_is_removed_completely(tmp_path: Path):
    """Neither the settings of its checkpoint, which would be served with the new graphs."""
    earlier(tmp_path)
    check_out(tmp_path, tmp_path.parent)
    with replacing(tmp_path) as draft:
        write(draft, artifact_json="{}", prefill_onnx="new", config_json="{}")
    assert names(tmp_path) == {MANIFEST, "prefill.onnx", "config.json", "compiled.bin"}


def test_an_earlier_artifact_remains_where_a_new_one_fails(tmp_path: Path):
    earlier(tmp_path)
    before = names(tmp_path)
    with pytest.raises(ConfigError, match=r"out: .* cannot be written: No space"), replacing(tmp_path) as draft:
        write(draft, step_onnx="new")
        raise OSError(28, "No space left on device")
    assert names(tmp_path) == before
    assert (tmp_path / "step.onnx").read_text() == "old"


def test_an_export_replaces_the_remains_of_a_killed_one(tmp_path: Path):
    (tmp_path / DRAFT).mkdir()
    write(tmp_path / DRAFT, step_onnx="half")
    check_out(tmp_path, tmp_path.parent)
    with replacing(tmp_path) as draft:
        write(draft, artifact_json="{}")
    assert names(tmp_path) == {MANIFEST}


@pytest.mark.parametrize("step", range(10))
def test_after_an_interrupted_change_over_nothing_is_served_and_the_export_can_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
):
    """After a kill, too: nothing that follows it is needed."""
    earlier(tmp_path)
    left = step
    rename, remove = Path.replace, Path.unlink

    def cut_short(function: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **options: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return function(*arguments, **options)

        return counted

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt), replacing(tmp_path) as draft:
        write(draft, artifact_json="{}", step_onnx="new", config_json="{}")
        patched.setattr(Path, "replace", cut_short(rename))
        patched.setattr(Path, "unlink", cut_short(remove))
    if is_artifact(tmp_path):
        assert step == 0 and (tmp_path / "step.onnx").read_text() == "old"
    else:
        with pytest.raises(CheckpointError):
            find_weights(tmp_path)
    check_out(tmp_path, tmp_path.parent)
    with replacing(tmp_path) as draft:
        write(draft, artifact_json="{}", prefill_onnx="newest")
    assert names(tmp_path) == {MANIFEST, "prefill.onnx", "compiled.bin"}


def test_a_tokenizer_in_the_folder_of_its_hub_name_is_kept(tmp_path: Path):
    source, out = tmp_path / "source", tmp_path / "out"
    (source / "owner" / "name").mkdir(parents=True)
    write(source / "owner" / "name", tokenizer_json="{}")
    write(source, config_json="{}", model_safetensors="weights")
    copy_texts(source, out)
    assert names(out) == {"owner/name/tokenizer.json", "config.json"}
