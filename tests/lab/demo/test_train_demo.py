"""`edgeflow train-demo`: the options that it rejects before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow_client.errors import ConfigError

KINDS = ([], ["--policy", "flow"], ["--chat"], ["--logs"])


def refused(*arguments: str) -> BaseException:
    result = CliRunner().invoke(app, ["train-demo", *arguments])
    assert result.exit_code != 0 and result.exception is not None
    return result.exception


@pytest.mark.parametrize("kind", KINDS, ids=" ".join)
def test_a_file_in_place_of_the_folder_is_rejected(kind: list[str], tmp_path: Path):
    out = tmp_path / "file"
    out.touch()
    error = refused(*kind, "--out", str(out), "--device", "cpu")
    assert isinstance(error, ConfigError) and str(error) == f"out: {out} is not a folder that can be written to"


@pytest.mark.parametrize("kind", KINDS, ids=" ".join)
def test_a_device_of_another_name_is_rejected(kind: list[str], tmp_path: Path):
    assert str(refused(*kind, "--device", "tpu", "--out", str(tmp_path))) == "2"


@pytest.mark.parametrize("kind", ["--chat", "--logs"])
def test_chat_models_are_of_no_kind_of_policy(kind: str, tmp_path: Path):
    error = refused(kind, "--policy", "flow", "--out", str(tmp_path))
    assert isinstance(error, ConfigError) and str(error) == "policy: --chat and --logs do not train a policy, got flow"


@pytest.mark.parametrize("seed", ["-1", "99999999999999999999999"])
def test_a_seed_out_of_range_is_rejected(seed: str, tmp_path: Path):
    assert str(refused("--seed", seed, "--out", str(tmp_path))) == "2"
