"""A search that was killed goes on where it was, and only under the same settings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from edgeflow.lab.quantize.files.search_state import SearchState, check_folder, read_choice
from edgeflow.lab.quantize.run import search_decoder
from edgeflow.lab.quantize.search.block_search import SearchSettings
from edgeflow.lab.quantize.search.choices import BlockChoice
from edgeflow_client.errors import CheckpointError, ConfigError
from tests.lab.quantize.cases import CONFIGS, random_decoder, random_ids

SETTINGS = {"group": 32, "tokens": "abc"}


class Killed(Exception):
    """Stands for the end of the process."""


def search(out: Path, *, blocks: int = 2) -> tuple[list[BlockChoice], list[int]]:
    """The choices, and the blocks that were searched; killed before block number `blocks`."""
    decoder = random_decoder(CONFIGS["llama"])
    searched: list[int] = []

    def report(what: str, done: int, count: int) -> None:
        if done == blocks:
            raise Killed
        searched.append(done)

    state = SearchState(out, SETTINGS)
    hidden = [decoder.embed(random_ids(decoder.config, 2, 16))]
    return search_decoder(decoder, hidden, SearchSettings(group=32), state, report), searched


def equal(first: BlockChoice, second: BlockChoice) -> bool:
    groups = zip(first.groups, second.groups, strict=True)
    assert first.limits is not None and second.limits is not None
    return all(
        (a.previous, a.scaled, a.ratio) == (b.previous, b.scaled, b.ratio)
        and torch.equal(a.scales, b.scales)
        and torch.equal(a.losses, b.losses)
        for a, b in groups
    ) and all(torch.equal(limits, second.limits[name]) for name, limits in first.limits.items())


def test_a_killed_search_resumes(tmp_path: Path):
    with pytest.raises(Killed):
        search(tmp_path / "killed", blocks=1)
    resumed, _ = search(tmp_path / "killed")
    whole, _ = search(tmp_path / "whole")
    assert all(map(equal, resumed, whole))


def test_blocks_that_are_done_are_not_searched_again(tmp_path: Path):
    first, _ = search(tmp_path)
    again, searched = search(tmp_path)
    assert searched == [] and all(map(equal, first, again))


def test_other_settings_are_rejected(tmp_path: Path):
    SearchState(tmp_path, SETTINGS)
    with pytest.raises(ConfigError, match="group was 32, is 64"):
        SearchState(tmp_path, {**SETTINGS, "group": 64})


def test_a_folder_with_other_files_is_rejected(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match="not empty and holds no search"):
        SearchState(tmp_path, SETTINGS)


def test_settings_that_are_known_are_rejected_before_the_others(tmp_path: Path):
    SearchState(tmp_path, SETTINGS)
    check_folder(tmp_path, {"group": 32})
    with pytest.raises(ConfigError, match="group was 32, is 64"):
        check_folder(tmp_path, {"group": 64})
    with pytest.raises(ConfigError, match="tokens was 'abc', is None"):
        SearchState(tmp_path, {"group": 32})


@pytest.mark.parametrize("below", ["", "further"])
def test_a_file_is_not_taken_for_a_folder(tmp_path: Path, below: str):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"out: .*file is not a folder"):
        check_folder(tmp_path / "file" / below, SETTINGS)


def test_a_folder_that_can_be_made_is_not_made_by_its_check(tmp_path: Path):
    check_folder(tmp_path / "new" / "out", SETTINGS)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_block_is_named(tmp_path: Path):
    search(tmp_path)
    path = next((tmp_path / ".quantize").glob("block-0001*"))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CheckpointError, match="block-0001"):
        read_choice(path)


def test_the_state_is_removed_with_its_folder(tmp_path: Path):
    state = SearchState(tmp_path, SETTINGS)
    state.remove()
    assert list(tmp_path.iterdir()) == []
