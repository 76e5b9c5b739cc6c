"""Both Dockerfiles against the project: what they name exists, and what they promise is what the service does."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow.commands import doctor
from edgeflow.config.service import ServiceConfig
from scripts.documents.links import links, resolve
from tests.deploy.dockerfile import ImageStage, stages

ROOT = Path(__file__).parents[2]
IMAGES = {"cuda": ROOT / "Dockerfile", "jetson": ROOT / "Dockerfile.jetson"}
LOCKED = re.compile(r"([a-z0-9-]+)==(\S+) --hash=sha256:[0-9a-f]{64}")
TESTED = (ROOT / "constraints" / "cpu.txt").read_text().splitlines()


def locked(image: str) -> dict[str, str]:
    lines = (ROOT / "constraints" / f"{image}.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    matches = [LOCKED.fullmatch(line) for line in pins]
    assert all(matches), "a wheel without a version or a hash"
    return {match[1]: match[2] for match in matches}


@pytest.fixture(params=IMAGES)
def image(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def built(image: str) -> list[ImageStage]:
    return stages(IMAGES[image])


def run_options(command: list[str]) -> None:
    """A command of edgeflow that its command line understands."""
    name, *options = command
    told = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"})
    assert told.exit_code == 0
    for option in options:
        if option.startswith("--"):
            assert option in told.stdout


def test_it_is_built_in_two_stages_of_pinned_bases(image: str, built: list[ImageStage]):
    build, final = built
    assert build.name == "build" and "COPY" in dict(final.lines)
    bases = {stage.base for stage in built}
    if image == "cuda":
        assert all(re.fullmatch(r"nvidia/cuda:13\.0\.2-\w+-ubuntu24\.04@sha256:[0-9a-f]{64}", base) for base in bases)
    else:
        assert len(bases) == 1 and "-r36." in bases.pop(), "L4T r36, and the torch that was compiled against"


def test_copied_files_exist_and_are_not_ignored(built: list[ImageStage]):
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert all(any(ROOT.glob(path)) for path in kept)
    for source in (rest.split()[0] for rest in built[0].all("COPY")):
        assert source == "." or (source.split("/")[0] in kept and (ROOT / source).exists()), source


def test_the_wheels_are_locked_ones_and_nothing_is_resolved(image: str, built: list[ImageStage]):
    installs = [rest for rest in built[0].all("RUN") if "pip install" in rest]
    assert len(installs) == 3 and all("--no-deps" in each for each in installs)
    assert f"--require-hashes -r constraints/{image}.txt" in installs[0]
    assert f"--require-hashes -r constraints/docs-{image}.txt" in installs[1]
    assert installs[2].startswith("pip install --no-deps ./client . ")


def test_the_documentation_is_written_before_the_package_and_its_tools_stay_behind(built: list[ImageStage]):
    build, final = built
    runs = build.all("RUN")
    written = next(at for at, rest in enumerate(runs) if "scripts/docs" in rest)
    assert written < next(at for at, rest in enumerate(runs) if "pip install --no-deps ./client ." in rest)
    assert not any("/opt/docs" in rest for _, rest in final.lines)


def test_the_image_has_what_the_documentation_shows():
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    pages = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("edgeflow/**/README.md"), *ROOT.glob("client/README.md")]
    names = {page: page.relative_to(ROOT).as_posix() for page in pages}
    shown = {resolve(name, link.target)[0] for page, name in names.items() for link in links(page.read_text())}
    inside = [path for path in shown if any(Path(path).is_relative_to(each) for each in kept)]
    assert [path for path in shown - {*inside} if "/" in path or not path.endswith(".md")] == []


def test_the_locks_hold_what_the_project_needs(image: str):
    versions = locked(image)
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 and newer read pyproject.toml")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    client = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]
    for requirement in [*client["dependencies"], *project["dependencies"]]:
        name = re.split(r"[\s<>=!~;\[]", requirement)[0]
        if name == "edgeflow-client":
            continue
        assert name in versions or (image, name) == ("jetson", "torch"), name
    tested = dict(line.split(";")[0].strip().split("==") for line in TESTED if "==" in line)
    for name in ("triton", "safetensors", "tokenizers", "llguidance", "jinja2"):
        assert versions[name] == tested[name], f"{name} is tested in another version: scripts/check-wheels --update"


@pytest.mark.parametrize("lock", ["docs-cuda", "docs-jetson"])
def test_the_documentation_is_written_by_the_tested_version(lock: str):
    tested = dict(line.split("==") for line in TESTED if line.startswith("mkdocs"))
    assert {name: locked(lock)[name] for name in tested} == tested


def test_a_jetsons_torch_is_never_replaced():
    assert not {name for name in locked("jetson") if name == "torch" or name.startswith("nvidia-c")}
    build, final = stages(IMAGES["jetson"])
    assert any("--system-site-packages" in rest for rest in build.all("RUN"))
    assert any("torch.__file__" in rest for rest in build.all("RUN")), "the build proves it"
    assert final.environment["FLASHINFER_CUDA_ARCH_LIST"] == "8.7"


def test_a_jetson_s_triton_finds_the_tools_of_l4t():
    _, final = stages(IMAGES["jetson"])
    ptxas = final.environment["TRITON_PTXAS_PATH"]
    assert any(f"test -x {ptxas}" in rest for rest in final.all("RUN")), "the build proves that the base has it"
    assert final.environment["TRITON_LIBCUDA_PATH"] in map(str, doctor.L4T_FOLDERS)
    assert ptxas == str(doctor.CUDA_PTXAS)


def test_a_jetson_s_build_sees_the_base_s_torch_before_anything_long():
    build, _ = stages(IMAGES["jetson"])
    runs = build.all("RUN")
    seen = next(at for at, rest in enumerate(runs) if "assert torch.version.cuda" in rest)
    assert "base.pth" in runs[seen], "also where the base keeps it in an environment of its own"
    assert seen < next(at for at, rest in enumerate(runs) if "pip install" in rest)


def test_flashinfer_is_left_out_of_a_jetson_unless_asked_for():
    """0.6.18 documents CUDA 12.9 and newer; the base has 12.6."""
    build, _ = stages(IMAGES["jetson"])
    assert "FLASHINFER=0" in build.all("ARG")
    (made,) = (rest for rest in build.all("RUN") if "build_flashinfer" in rest)
    asked, _, otherwise = made.removeprefix('if [ "$FLASHINFER" = 1 ]; then').partition("else")
    assert "build_flashinfer.py" in asked and "pip uninstall --yes flashinfer-python" in otherwise


def test_the_user_is_not_root_and_owns_the_cache(built: list[ImageStage]):
    final = built[-1]
    user = final.last("USER").split(":")[0]
    (made,) = (rest for rest in final.all("RUN") if "useradd" in rest)
    assert user != "0" and f"--uid {user} " in made
    cache = final.last("VOLUME")
    assert f"install -d -o edgeflow -g edgeflow {cache}" in made
    written = {name: value for name, value in final.environment.items() if value.startswith("/var/")}
    assert {"HOME", "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "CUDA_CACHE_PATH"} == set(written)
    assert all(value.startswith(cache) for value in written.values()), "with a read-only root nothing else is writable"


def test_the_images_run_edgeflows_commands(built: list[ImageStage]):
    final = built[-1]
    assert final.command("ENTRYPOINT") == [app.info.name]
    run_options(final.command("CMD"))
    timing, _, command = final.last("HEALTHCHECK").partition("CMD ")
    words = json.loads(command)
    assert words[0] == "edgeflow"
    run_options(words[1:])
    assert final.command("CMD")[2] == words[3], "the check reads the configuration that is served"
    start_s = int(re.search(r"--start-period=(\d+)s", timing)[1])
    assert start_s >= ServiceConfig().timing.worker_start_s


def test_ports_and_signal_are_the_services(built: list[ImageStage]):
    config, final = ServiceConfig(), built[-1]
    assert final.last("EXPOSE").split() == [str(each.port) for each in (config.grpc, config.http, config.frontends)]
    assert final.last("STOPSIGNAL") == "SIGTERM"


def test_the_default_configuration_serves_loopback_only(built: list[ImageStage]):
    """So that an image started with no thought asks for none: --network host, and robots on this machine."""
    (made,) = (rest for rest in built[-1].all("RUN") if "config.json" in rest)
    written = re.search(r"echo '(.*?)' > (\S+)", made)
    assert json.loads(written[1]) == {} and written[2] == built[-1].command("CMD")[2]


def test_the_flashinfer_build_is_valid_and_installed_where_flashinfer_is_locked(image: str):
    """It is compiled where nvcc is; here its syntax and its place."""
    source = (ROOT / "deploy" / "build_flashinfer.py").read_text()
    compile(source, "build_flashinfer.py", "exec")
    assert "flashinfer-python" in locked(image) and "apache-tvm-ffi" in locked(image)


FOR_PEOPLE = [*IMAGES.values(), ROOT / "docs/operate/deploy.md", ROOT / "docs/operate/jetson.md"]


@pytest.mark.parametrize("path", FOR_PEOPLE, ids=lambda path: path.name)
def test_docker_lines_for_people_name_images_that_are_built(path: Path):
    text = re.sub(r"\\\n#? *", " ", path.read_text())
    lines = [shlex.split(line.lstrip("# "), comments=True) for line in text.splitlines() if "docker run" in line]
    assert lines
    for line in lines:
        assert {"edgeflow", "edgeflow:jetson"} & set(line)
        if "edgeflow:jetson" in line:
            assert line[line.index("--runtime") + 1] == "nvidia"


def test_the_configuration_on_the_page_is_the_one_provided():
    page = (ROOT / "docs/operate/deploy.md").read_text()
    (shown,) = re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert json.loads(shown) == json.loads((ROOT / "deploy/config.json").read_text())


def test_the_locks_check_needs_no_package(tmp_path: Path):
    told = subprocess.run(
        [sys.executable, "-I", ROOT / "scripts" / "check-wheels", "--help"], capture_output=True, text=True, check=True
    )
    assert "--update" in told.stdout
