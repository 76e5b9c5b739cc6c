"""Families from installed distributions: found, refused by name where they are broken, and no burden to others."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import edgeflow
from edgeflow.commands import doctor
from edgeflow.commands.doctor import CheckOutcome
from edgeflow.config.sections import PolicyConfig
from edgeflow.contract import Image, Observation
from edgeflow.lab.verify.checkpoint import verify_checkpoint
from edgeflow.policies import registry
from edgeflow.policies.registry import detected, family_of, plugin_of, try_plugins
from edgeflow.service.host.preflight import check_model_directory
from edgeflow_client.errors import CheckpointError, ConfigError
from tests.policies.act.checkpoint import write_checkpoint
from tests.policies.test_served import answer_of, loaded
from tests.stub_policy import environment, stub_checkpoint
from tests.template_plugin import TEMPLATE, Install, entry_of, write_metadata

ROOT = Path(__file__).parents[2]
FAMILY = """
from edgeflow.policies.family import ONE_PASS_MODES, Family

def none(*_): ...

OTHER = Family(name="other", modes=ONE_PASS_MODES, detect=lambda files: files.config["kind"] == "other", check=none,
               load=none, prepare=none)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a distribution of one module, `code`, with one family; returns where it lies."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])

    def add(code: str, *, distribution: str = "robot-other", name: str = "other", value: str = "") -> Path:
        module = distribution.replace("-", "_")
        (folder / f"{module}.py").write_text(code)
        write_metadata(folder, distribution, name, value or f"{module}:OTHER")
        registry.plugins.cache_clear()
        return folder

    yield add
    registry.plugins.cache_clear()
    for name in [each for each in sys.modules if each.startswith("robot_")]:
        del sys.modules[name]


def folder_of(path: Path, **config: object) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_a_checkpoint_of_its_kind_is_served(stub_plugin: None, tmp_path: Path):
    directory = stub_checkpoint(tmp_path / "stub")
    assert family_of(directory).name == family_of(directory, "stub").name == detected(directory).name == "stub"
    check_model_directory(directory)
    with pytest.raises(CheckpointError, match=r"type 'other'; served: openvla_oft, .*, pi05, stub$"):
        family_of(folder_of(tmp_path / "other", type="other"))


def test_control_finds_a_plug_in_without_torch(tmp_path: Path):
    directory = stub_checkpoint(tmp_path / "stub")
    code = (
        "import sys\nfrom pathlib import Path\nfrom edgeflow.service.host.preflight import check_model_directory\n"
        f"check_model_directory(Path({str(directory)!r}))\nsys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=environment())


def test_a_plug_in_that_imports_torch_in_control_is_rejected(install: Install, tmp_path: Path):
    folder = install(f"import torch\n{FAMILY}")
    (folder / "torch.py").write_text("")  # another one, which takes no second to load
    code = (
        "from pathlib import Path\nfrom edgeflow.policies.registry import family_of\n"
        f"try: family_of(Path({str(tmp_path)!r}), 'other')\nexcept Exception as error: print(error, error.__cause__)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=ROOT,
        env={**environment(), "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    assert "robot-other 2.5 cannot be used (ImportError)" in process.stdout
    assert "only its load and prepare may" in process.stdout


@pytest.mark.parametrize(
    ("code", "value", "named"),
    [
        ("import no_such_library", "", "ModuleNotFoundError"),
        ("1 / 0", "", "ZeroDivisionError"),
        ("raise SystemExit(3)", "", "SystemExit"),
        ("OTHER = None", "", "TypeError"),
        (FAMILY, "robot_other:ANOTHER", "AttributeError"),
        (FAMILY.replace('name="other"', 'name="another"'), "", "TypeError"),
    ],
)
def test_a_broken_plug_in_disturbs_no_other(install: Install, tmp_path: Path, code: str, value: str, named: str):
    install(code, value=value)
    install(FAMILY.replace('"other"', '"sound"'), distribution="robot-sound", name="sound")
    assert family_of(write_checkpoint(tmp_path / "act")).name == "act"
    assert family_of(folder_of(tmp_path / "sound", kind="sound")).name == "sound"
    unusable = rf"policy\.family: other of robot-other 2\.5 cannot be used \({named}\); see `edgeflow doctor`"
    with pytest.raises(ConfigError, match=unusable):
        family_of(tmp_path / "act", "other")
    with pytest.raises(CheckpointError, match=rf"has type 'x'; served: .*; {unusable}"):
        family_of(folder_of(tmp_path / "unknown", type="x", kind="x"))
    sound, broken = doctor._plugins()[::-1]
    assert (sound.subject, sound.verdict, sound.found) == ("policy sound", CheckOutcome.OK, "robot-sound 2.5")
    assert (broken.subject, broken.verdict) == ("policy other", CheckOutcome.OPTIONAL)
    assert broken.found.startswith(f"robot-other 2.5: {named}(") and broken.advice


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("import os; os._exit(0)", "it ends its process with exit code 0"),
        ("import os; os.kill(os.getpid(), 9)", "it ends its process by signal 9"),
        ("import threading; threading.Event().wait()", "no answer within 1.5 s"),
        (f"{FAMILY}\ndef busy(*_):\n    while True: ...\nnone.__code__ = busy.__code__", "no answer within 1.5 s"),
    ],
    ids=["exits", "dies", "hangs", "hangs in check"],
)
def test_a_plug_in_that_ends_its_process_or_keeps_it_busy_disturbs_no_other(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, fault: str
):
    install(code)
    install(FAMILY.replace('"other"', '"sound"'), distribution="robot-sound", name="sound")
    unknown = folder_of(tmp_path / "unknown", type="x", kind="other")
    with monkeypatch.context() as changed, pytest.raises(ConfigError, match=re.escape(fault)):
        changed.setattr("edgeflow.policies.plugins.TRIAL_S", 1.5)
        if fault.startswith("no answer"):
            check_model_directory(unknown, PolicyConfig(family="other"))
        else:
            edgeflow.load(unknown, policy={"family": "other"})
    with contextlib.suppress(CheckpointError):  # a sound one rejects the empty folder for its weights
        check_model_directory(folder_of(tmp_path / "sound", kind="sound"))
    assert family_of(tmp_path / "sound").name == "sound"
    assert plugin_of("sound") == "sound of robot-sound 2.5" and plugin_of("act") == ""


CLAIMS = FAMILY.replace('files.config["kind"] == "other"', "True")
"""It recognises every checkpoint."""


@pytest.mark.parametrize("code", ["import os; os._exit(0)", CLAIMS.replace("True", "__import__('os')._exit(0)")])
def test_the_next_plug_in_serves_where_the_first_ends_its_process(install: Install, tmp_path: Path, code: str):
    install(code)
    install(CLAIMS.replace('"other"', '"sound"'), distribution="robot-sound", name="sound")
    directory = folder_of(tmp_path / "some", type="x")
    assert try_plugins(directory, "", {}) == "sound"
    assert family_of(directory, "sound").name == "sound"


def test_what_a_plug_in_does_at_its_import_and_in_its_check_stays_its_own(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    before = signal.getsignal(signal.SIGTERM)
    install(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('hello')\n"
        + FAMILY.replace("def none(*_): ...", "def none(*_): raise SystemExit('bye')")
    )
    with pytest.raises(ConfigError, match=r"^policy\.family: other of robot-other 2\.5 cannot be used \(SystemExit\)"):
        check_model_directory(folder_of(tmp_path / "some", kind="other"), PolicyConfig(family="other"))
    assert signal.getsignal(signal.SIGTERM) is before
    assert capsys.readouterr() == ("", "hello\n")


def test_a_plug_in_that_fails_on_files_disturbs_no_other(install: Install, tmp_path: Path):
    install(FAMILY)
    with pytest.raises(CheckpointError, match=r"has type 'x'; .*robot-other 2\.5 cannot be used \(KeyError\)"):
        family_of(folder_of(tmp_path / "unknown", type="x"))
    assert detected(tmp_path / "unknown") is None


def test_two_plug_ins_of_one_name_are_rejected(install: Install, tmp_path: Path):
    install(FAMILY)
    install(FAMILY, distribution="robot-twin")
    both = r"policy\.family: other is brought by robot-other 2\.5 and by robot-twin 2\.5: remove one"
    with pytest.raises(ConfigError, match=both):
        family_of(folder_of(tmp_path / "other", kind="other"), "other")
    with pytest.raises(ConfigError, match=rf"has no model_type and no type; served: .*; {both}"):
        family_of(tmp_path / "other")
    assert family_of(write_checkpoint(tmp_path / "act")).name == "act"
    assert "robot-twin" in doctor._plugins()[0].found


def test_a_plug_in_cannot_take_the_name_of_a_built_in_family(install: Install, tmp_path: Path):
    install(FAMILY.replace('"other"', '"act"'), name="act")
    directory = write_checkpoint(tmp_path / "act")
    assert family_of(directory) is next(each for each in registry.FAMILIES if each.name == "act")
    with pytest.raises(ConfigError, match=r"act is brought by edgeflow-server and by robot-other 2\.5"):
        family_of(directory, "act")


def test_a_checkpoint_that_a_built_in_one_recognises_is_its_own(install: Install, tmp_path: Path):
    install(FAMILY.replace('files.config["kind"] == "other"', "True"))
    directory = write_checkpoint(tmp_path / "act")
    assert family_of(directory).name == "act"
    assert family_of(directory, "other").name == "other"


def test_the_template_is_served(template_plugin: object, tmp_path: Path):
    from edgeflow_template.checkpoint import write_checkpoint
    from edgeflow_template.network import TemplateNetwork
    from edgeflow_template.policy import TemplatePolicy

    directory = write_checkpoint(tmp_path / "checkpoint")
    check_model_directory(directory)
    policy = loaded(directory, {})
    assert isinstance(policy, TemplatePolicy)
    network = TemplateNetwork(policy.config)
    network.load_state_dict(load_file(directory / "model.safetensors"))
    image = Image(96, 96, bytes([255, 0, 51]) * 96 * 96)
    seen = Observation(images={"wrist": image}, state={"joints": (0.5, -0.25)}, instruction="")
    pixels = torch.tensor([1.0, 0.0, 0.2]).view(1, 3, 1, 1).expand(1, 3, 96, 96)
    wanted = network(pixels, torch.tensor([[0.5, -0.25]]))[0].detach().numpy() * np.pi
    assert np.allclose(answer_of(policy, seen), wanted, atol=1e-5)
    assert policy.action_schema().step_ms == 100 and policy.inputs.cameras[0].name == "wrist"
    with pytest.raises(ConfigError, match=r"policy\.speed: this family, template, has no settings"):
        check_model_directory(directory, PolicyConfig(speed=1))
    save_file({}, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match="Missing key"):
        loaded(directory, {})
    (directory / "config.json").write_text('{"type": "template", "joints": 2, "side": 96, "width": 16, "rate_hz": 10}')
    with pytest.raises(CheckpointError, match=r"horizon in config\.json .* must be positive: None"):
        check_model_directory(directory)


def test_the_page_shows_the_template():
    page = (ROOT / "docs/policies/write-your-own.md").read_text()
    shown = re.findall(r"```(?:python|toml)\n(.*?)```", page, re.DOTALL)
    files = [path.read_text() for path in TEMPLATE.rglob("*") if path.suffix in (".py", ".toml")]
    assert len(shown) == 5
    parts = [each.removeprefix("class TemplatePolicy:\n    ...\n\n") for each in shown]
    assert [each for each in parts if not any(each in text for text in files)] == []


def test_a_copy_of_the_template_has_its_own_name(template_plugin: Install, tmp_path: Path):
    """By the commands of its README."""
    (block,) = re.findall(r"```bash\n(.*?)```", (TEMPLATE / "README.md").read_text(), re.DOTALL)
    commands = [line for line in block.splitlines() if not line.startswith(".venv")]
    assert len(commands) == 4
    shutil.copytree(TEMPLATE, tmp_path / "plugins" / "template", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["bash", "-ec", "\n".join(commands)], check=True, cwd=tmp_path)
    template_plugin(tmp_path / "arm", *entry_of(tmp_path / "arm"))
    assert family_of(folder_of(tmp_path / "checkpoint", type="arm")).name == "arm"
    copied = [path for path in (tmp_path / "arm").rglob("*.*") if path.suffix != ".pyc"]
    left = [path for path in copied if "template" in path.read_text().lower() + path.name]
    assert left == []


def test_a_policy_of_an_earlier_interface_is_rejected(
    stub_plugin: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    directory = stub_checkpoint(tmp_path / "stub")
    family_of(directory)
    monkeypatch.delattr("edgeflow_stub.StubPolicy.batch")  # which had only run(frames)
    with pytest.raises(ConfigError, match=r"StubPolicy has no batch, .* see docs/policies/write-your-own\.md"):
        loaded(directory, {})


def test_it_has_no_recordings_to_verify(stub_plugin: None, tmp_path: Path):
    with pytest.raises(ConfigError, match="family stub, a plug-in, have no recordings"):
        verify_checkpoint(stub_checkpoint(tmp_path / "stub"), (), Mock())
