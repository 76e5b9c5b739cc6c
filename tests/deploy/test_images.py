"""The Dockerfiles against the project: what they name exists, and what they promise is what the service does."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from typer.testing import CliRunner

from deploy import check_base
from edgeflow.cli import app
from edgeflow.commands import doctor
from edgeflow.config.service import ServiceConfig
from scripts.documents.links import links, resolve
from tests.deploy.dockerfile import ImageStage, image

ROOT = Path(__file__).parents[2]
IMAGES = {
    "cpu": image(ROOT / "Dockerfile", "cpu"),
    "cuda": image(ROOT / "Dockerfile"),
    "jetson": image(ROOT / "Dockerfile.jetson"),
}
LOCKS = {"cpu": "cpu-image", "cuda": "cuda", "jetson": "jetson"}
LOCKED = re.compile(r"([^#]+?)((?: --hash=sha256:[0-9a-f]{64})+)")
INSTALL = ROOT / "deploy" / "install.sh"
DOCKERFILES = [ROOT / "Dockerfile", ROOT / "Dockerfile.jetson"]
PYTHON_OF = {"bookworm": "3.11", "trixie": "3.13", "22.04": "3.10", "24.04": "3.12"}
PAGES = [ROOT / "docs/operate/deploy.md", ROOT / "docs/operate/jetson.md"]
TESTED = (ROOT / "constraints" / "cpu.txt").read_text().splitlines()
IGNORED = (ROOT / ".dockerignore").read_text().splitlines()
KEPT = [line[1:] for line in IGNORED if line.startswith("!")]


def pythons(lock: str) -> list[str]:
    return check_base.pythons_of((ROOT / "constraints" / f"{lock}.txt").read_text())


def locked(lock: str, python: str = "") -> dict[str, str]:
    """Versions by name for a Python, the first of the lock if none is named."""
    lines = (ROOT / "constraints" / f"{lock}.txt").read_text().splitlines()
    matches = [LOCKED.fullmatch(line) for line in lines if not line.startswith("#")]
    assert all(matches), "a wheel without a version or a hash"
    wanted = [Requirement(match[1]) for match in matches]
    there = {"python_version": python or pythons(lock)[0]}
    here = [each for each in wanted if each.marker is None or each.marker.evaluate(there)]
    assert len({each.name for each in here}) == len(here), "two versions for one Python"
    return {each.name: str(each.specifier).removeprefix("==") for each in here}


def commands(stage: ImageStage) -> list[str]:
    """What it runs, with deploy/install.sh in place of its name."""
    script = "; ".join(line for line in INSTALL.read_text().splitlines() if not line.startswith("#"))
    return [script if rest == "deploy/install.sh" else rest for rest in stage.all("RUN")]


def project() -> dict:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 and newer read pyproject.toml")
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(params=IMAGES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def build(name: str) -> ImageStage:
    return IMAGES[name][0]


@pytest.fixture
def final(name: str) -> ImageStage:
    return IMAGES[name][1]


def run_options(command: list[str]) -> None:
    """A command of edgeflow that its command line understands."""
    name, *options = command
    told = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"})
    assert told.exit_code == 0
    for option in options:
        if option.startswith("--"):
            assert option in told.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="the extra `dev` has hadolint on Linux")
def test_hadolint_finds_nothing():
    hadolint = Path(sys.executable).with_name("hadolint")
    ignored = (
        "--ignore=DL3003",
        "--ignore=DL3059",
    )  # `cd` for one command: WORKDIR would stay; layers built again apart
    told = subprocess.run([hadolint, *ignored, *DOCKERFILES], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout) == (0, "")


def test_the_bases_are_arguments_and_their_python_is_one_of_the_lock():
    assert all("FROM ${" in path.read_text() and "FROM $(" not in path.read_text() for path in DOCKERFILES)
    cpu = {stage.base for stage in IMAGES["cpu"]}
    assert cpu == {"debian:bookworm-slim"}
    assert {PYTHON_OF[each] for each in ("bookworm", "trixie", "24.04")} == {*pythons("cpu-image")}, "as it says"
    for stage in IMAGES["cuda"]:
        assert re.fullmatch(r"nvidia/cuda:13\.0\.2-\w+-ubuntu24\.04@sha256:[0-9a-f]{64}", stage.base)
    assert pythons("cuda") == [PYTHON_OF["24.04"]]
    assert {stage.base for stage in IMAGES["jetson"]} == {check_base.JETPACKS[6]}, "the torch that was compiled against"
    assert pythons("jetson") == [PYTHON_OF["22.04"], PYTHON_OF["24.04"]], "JetPack 6 and 7"
    assert f"BASE={check_base.JETPACKS[7]} " in (ROOT / "Dockerfile.jetson").read_text()


def test_cuda_of_the_base_is_that_of_the_locked_torch():
    release = re.search(r"cuda:(\d+\.\d+)\.", IMAGES["cuda"][1].base)[1]
    assert locked("cuda")["cuda-toolkit"].startswith(f"{release}.")


def test_copied_files_and_named_scripts_exist_and_are_not_ignored(build: ImageStage, final: ImageStage):
    assert all(any(ROOT.glob(path)) for path in KEPT)
    runs = " ".join([*build.all("RUN"), *commands(build), *final.all("RUN")])
    scripts = re.findall(r"(?:^|[ =/])((?:deploy|scripts)/[\w-]+(?:\.\w+)?)", runs)
    assert {"scripts/docs", "deploy/install.sh"} <= {*scripts}
    for source in [*build.sources, *final.sources, *scripts]:
        assert source == "." or (source.split("/")[0] in KEPT and (ROOT / source).exists()), source
    for module in re.findall(r"-m (edgeflow[\w.]*)", runs):
        assert importlib.util.find_spec(module), module


def test_keys_and_checkpoints_beside_the_compose_file_stay_out_of_images_and_of_git():
    folders = ["deploy/secrets", "deploy/models"]
    assert all(IGNORED.index(each) > IGNORED.index("!deploy") for each in folders)
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert all(f"{each}/" in ignored for each in folders)


def test_the_wheels_are_locked_ones_and_nothing_is_resolved(name: str, build: ImageStage):
    lock = LOCKS[name]
    values = {"LOCK": f"constraints/{lock}.txt", "DOCS_LOCK": f"constraints/docs-{lock}.txt"}
    assert {key: build.arguments[key] for key in values if key in build.arguments} in (values, {})
    text = [re.sub(r'"\$(LOCK|DOCS_LOCK)"', lambda hit: values[hit[1]], rest) for rest in commands(build)]
    installs = [step for rest in text for step in re.split(" && |; ", rest) if "pip install" in step]
    assert all("--no-deps" in each for each in installs)
    assert f"--require-hashes -r {values['LOCK']}" in installs[0]
    assert f"--require-hashes -r {values['DOCS_LOCK']}" in installs[-2]
    assert installs[-1].endswith(" pip install --no-deps ./client .") and "BUILD_CONSTRAINT=" in installs[-1]
    assert {*values.values()} <= {*build.sources}, "the lock is copied before the tree, so that its layer is kept"


def test_the_documentation_is_written_before_the_package_and_its_tools_stay_behind(
    build: ImageStage, final: ImageStage
):
    runs = commands(build)
    written = next(at for at, rest in enumerate(runs) if "scripts/docs" in rest)
    assert written < next(at for at, rest in enumerate(runs) if "pip install --no-deps ./client ." in rest)
    assert not any("/opt/docs" in rest for _, rest in final.lines)


def test_images_leave_out_only_what_the_commands_in_them_do_not_import():
    left_out = re.search(r"lab\" && rm -r (.*)\)", INSTALL.read_text())[1].split()
    lab = ROOT / "edgeflow" / "lab"
    assert all((lab / each).is_dir() for each in left_out)
    kept = [lab / "commands" / "checking.py"]
    kept += [path for each in ("conformance", "trials", "tuning", "verify") for path in (lab / each).rglob("*.py")]
    imported = re.compile(rf"(from|import) edgeflow\.lab(\.| import )({'|'.join(left_out)})\b")
    assert [path for path in kept if imported.search(path.read_text())] == []


def test_the_image_has_what_the_documentation_shows():
    pages = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("edgeflow/**/README.md"), *ROOT.glob("client/README.md")]
    names = {page: page.relative_to(ROOT).as_posix() for page in pages}
    shown = {resolve(name, link.target)[0] for page, name in names.items() for link in links(page.read_text())}
    inside = [path for path in shown if any(Path(path).is_relative_to(each) for each in KEPT)]
    assert [path for path in shown - {*inside} if "/" in path or not path.endswith(".md")] == []


def test_the_locks_hold_what_the_project_needs(name: str):
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 and newer read pyproject.toml")
    server = project()
    client = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]
    for python in pythons(LOCKS[name]):
        assert SpecifierSet(server["requires-python"]).contains(python)
        versions = locked(LOCKS[name], python)
        for requirement in map(Requirement, [*client["dependencies"], *server["dependencies"]]):
            if requirement.name == "edgeflow-client" or (requirement.name == "torch" and name != "cuda"):
                continue
            assert requirement.specifier.contains(versions[requirement.name]), (python, requirement)
        tested = dict(line.split(";")[0].strip().split("==") for line in TESTED if "==" in line)
        for package in {"triton", "safetensors", "tokenizers", "llguidance", "jinja2"} & {*versions}:
            assert versions[package] == tested[package], f"another {package} is tested: scripts/check-wheels --update"


@pytest.mark.parametrize("lock", [*LOCKS.values(), *(f"docs-{lock}" for lock in LOCKS.values())])
def test_the_locks_hold_what_their_wheels_need_on_each_python(lock: str):
    """As far as the same releases are installed here: on Python 3.10 some need what newer ones have built in."""
    for python in pythons(lock):
        versions = locked(lock, python)
        there = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
        for name, version in versions.items():
            try:
                installed = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                continue
            if installed.version.partition("+")[0] != version or name in ("torch", "flashinfer-python"):
                continue
            for needed in map(Requirement, installed.requires or []):
                if needed.marker is None or needed.marker.evaluate(there):
                    assert canonicalize_name(needed.name) in {*versions, "torch"}, (python, name, str(needed))


@pytest.mark.parametrize("lock", [f"docs-{lock}" for lock in LOCKS.values()])
def test_the_documentation_is_written_by_the_tested_version(lock: str):
    tested = dict(line.split("==") for line in TESTED if line.startswith("mkdocs"))
    for python in pythons(lock):
        assert {name: locked(lock, python)[name] for name in tested} == tested


def test_a_jetson_s_torch_is_never_replaced():
    for python in pythons("jetson"):
        assert not {name for name in locked("jetson", python) if name == "torch" or name.startswith("nvidia-c")}
    build, _ = IMAGES["jetson"]
    runs = build.all("RUN")
    checks = [at for at, rest in enumerate(runs) if "check_base.py" in rest]
    (visible,) = (at for at, rest in enumerate(runs) if "--system-site-packages" in rest)
    (wheels,) = (at for at, rest in enumerate(runs) if '-r "$LOCK"' in rest)
    assert "base.pth" in runs[visible], "also where the base keeps torch in an environment of its own"
    assert checks == [visible - 1, wheels], "before anything long, and after the wheels"
    assert runs[checks[0]].startswith("python3 ") and runs[checks[1]].endswith("--installed")
    assert build.environment["PIP_CONSTRAINT"] == "", "NVIDIA's images hold pip to other versions than the lock's"


def test_a_jetson_s_triton_finds_the_tools_of_l4t():
    _, final = IMAGES["jetson"]
    assert final.environment["TRITON_LIBCUDA_PATH"] in map(str, doctor.L4T_FOLDERS)
    for variable in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        assert final.environment[variable] == str(doctor.CUDA_PTXAS) == str(check_base.PTXAS)
    nvidia = pytest.importorskip("triton").knobs.nvidia
    said = " ".join((ROOT / "Dockerfile.jetson").read_text().replace("\n#", "").split())
    assert f"{nvidia.ptxas.version} for an Orin and {nvidia.ptxas_blackwell.version} for a Thor" in said


def test_flashinfer_is_left_out_of_a_jetson_unless_asked_for():
    """0.6.18 documents CUDA 12.9 and newer; JetPack 6 has 12.6."""
    build, final = IMAGES["jetson"]
    assert build.arguments["FLASHINFER"] == "0"
    (made,) = (rest for rest in build.all("RUN") if "build_flashinfer" in rest)
    asked, _, otherwise = made.removeprefix('if [ "$FLASHINFER" = 1 ]; then').partition("else")
    assert "build_flashinfer.py" in asked and "pip uninstall --yes flashinfer-python" in otherwise
    assert build.arguments["ARCHITECTURES"] == final.environment["FLASHINFER_CUDA_ARCH_LIST"] == "8.7"


def test_pages_and_dockerfiles_name_the_locked_flashinfer():
    named = {
        each for path in [*DOCKERFILES, *PAGES] for each in re.findall(r"FlashInfer (\d[\d.]*\d)", path.read_text())
    }
    assert named == {locked("jetson")["flashinfer-python"]} == {locked("cuda")["flashinfer-python"]}


def test_the_user_is_not_root_and_owns_the_cache(final: ImageStage):
    user = final.last("USER").split(":")[0]
    (made,) = (rest for rest in final.all("RUN") if "useradd" in rest)
    assert user != "0" and f"--uid {user} " in made
    cache = final.last("VOLUME")
    assert f"install -d -o edgeflow -g edgeflow {cache}" in made
    written = {name: value for name, value in final.environment.items() if value.startswith("/var/")}
    on_gpus = {"TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "CUDA_CACHE_PATH"}
    assert {*written} == {"HOME"} | (on_gpus if final.name != "cpu" else set())
    assert all(value.startswith(cache) for value in written.values()), "with a read-only root nothing else is writable"


def test_the_images_run_edgeflows_commands(final: ImageStage):
    assert final.command("ENTRYPOINT") == [app.info.name]
    run_options(final.command("CMD"))
    timing, _, command = final.last("HEALTHCHECK").partition("CMD ")
    words = json.loads(command)
    assert words[0] == "edgeflow"
    run_options(words[1:])
    assert final.command("CMD")[2] == words[3], "the check reads the configuration that is served"
    start_s = int(re.search(r"--start-period=(\d+)s", timing)[1])
    assert start_s >= ServiceConfig().timing.worker_start_s


def test_the_images_end_alike():
    """The same user, ports, health check and command in all of them; a Jetson's user keeps its group `video`."""
    ends = []
    for _, final in IMAGES.values():
        at = [instruction for instruction, _ in final.lines].index("USER")
        ends.append([final.lines[at][1].split(":")[0], *final.lines[at + 1 :]])
    assert ends[0] == ends[1] == ends[2]
    cpu, cuda, jetson = ({*final.environment.items()} for _, final in IMAGES.values())
    assert cpu < cuda < jetson


def test_ports_and_signal_are_the_services(final: ImageStage):
    config = ServiceConfig()
    assert final.last("EXPOSE").split() == [str(each.port) for each in (config.grpc, config.http, config.frontends)]
    assert final.last("STOPSIGNAL") == "SIGTERM"


def test_the_default_configuration_serves_loopback_only(final: ImageStage):
    """So that an image started with no thought asks for none: --network host, and robots on this machine."""
    (made,) = (rest for rest in final.all("RUN") if "config.json" in rest)
    written = re.search(r"echo '(.*?)' > (\S+)", made)
    assert json.loads(written[1]) == {} and written[2] == final.command("CMD")[2]


@pytest.mark.parametrize("lock", ["cuda", "jetson"])
def test_the_flashinfer_build_is_valid_and_installed_where_flashinfer_is_locked(lock: str):
    """It is compiled where nvcc is; here its syntax and its place."""
    source = (ROOT / "deploy" / "build_flashinfer.py").read_text()
    compile(source, "build_flashinfer.py", "exec")
    assert "flashinfer-python" in locked(lock) and "apache-tvm-ffi" in locked(lock)


@pytest.mark.parametrize("path", [*DOCKERFILES, *PAGES], ids=lambda path: path.name)
def test_docker_lines_for_people_name_images_and_arguments_that_exist(path: Path):
    text = re.sub(r"\\\n#? *", " ", path.read_text())
    lines = [shlex.split(line.lstrip("# "), comments=True) for line in text.splitlines() if "docker run" in line]
    assert lines
    for line in lines:
        assert {"edgeflow", "edgeflow:cpu", "edgeflow:jetson"} & set(line)
        if "edgeflow:jetson" in line:
            assert line[line.index("--runtime") + 1] == "nvidia"
        assert ("--gpus" in line) == ("edgeflow" in line)
    named = {*re.findall(r"--build-arg ([A-Z_]+)=", text)} - {"NAME"}
    declared = [re.findall(r"^ARG (\w+)", file.read_text(), re.MULTILINE) for file in DOCKERFILES]
    assert named <= {each for names in declared for each in names}


def test_the_configuration_on_the_page_is_the_one_provided():
    page = (ROOT / "docs/operate/deploy.md").read_text()
    (shown,) = re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert json.loads(shown) == json.loads((ROOT / "deploy/config.json").read_text())


def test_the_locks_check_needs_no_package(tmp_path: Path):
    told = subprocess.run(
        [sys.executable, "-I", ROOT / "scripts" / "check-wheels", "--help"], capture_output=True, text=True, check=True
    )
    assert "--update" in told.stdout
