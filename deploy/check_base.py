"""Check the base of Dockerfile.jetson: that it is one of the lock's Pythons, and brings a torch with CUDA and ptxas.

    python3 deploy/check_base.py LOCK [--gpus "8.7"]
    /opt/edgeflow/bin/python deploy/check_base.py LOCK --installed

The first runs before anything long is built. The second runs after the wheels were installed, and finds a torch that
replaced the base's, or a NumPy that the base's cannot use. Every fault is a line with what to do; with a fault the exit
code is 1. Warnings name what this build cannot know. It runs with the base's own python3, so it needs no package.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PTXAS = Path("/usr/local/cuda/bin/ptxas")
ENVIRONMENT = Path("/opt/edgeflow")
OLDEST_TORCH = (2, 6)
JETPACKS = {6: "dustynv/pytorch:2.7-r36.4.0", 7: "nvcr.io/nvidia/pytorch:25.08-py3"}
KNOWN_BASES = " or ".join(f"--build-arg BASE={base} (JetPack {number})" for number, base in JETPACKS.items())


@dataclass(frozen=True)
class BaseImage:
    """A base image: its Python, its torch, its CUDA tools."""

    python: str
    """Its python3, such as 3.10."""
    machine: str
    torch: str = ""
    """Version; empty: python3 cannot import it."""
    torch_error: str = ""
    """Why python3 cannot import it."""
    torch_folder: Path = Path()
    cuda: str = ""
    """CUDA of torch; empty: none."""
    gpus: tuple[str, ...] = ()
    """GPUs that torch has kernels for, such as sm_87; empty: it does not say."""
    ptxas: str = ""
    """CUDA of ptxas; empty: it does not run."""
    numpy_error: str = ""
    """The error of torch that takes an array; empty: none."""


def look() -> BaseImage:
    """Look at the Python that runs this, and at what it can import."""
    python, machine = "{}.{}".format(*sys.version_info), platform.machine()
    try:
        import torch
    except (ImportError, OSError) as error:
        return BaseImage(python, machine, torch_error=str(error))
    numpy_error = ""
    try:
        import numpy

        torch.from_numpy(numpy.zeros(1))
    except ImportError:
        pass  # of the base: the lock has one
    except RuntimeError as error:
        numpy_error = f"NumPy {numpy.__version__}: {error}"
    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)() or ""
    return BaseImage(
        python,
        machine,
        torch=torch.__version__,
        torch_folder=Path(torch.__file__).parent,
        cuda=torch.version.cuda or "",
        gpus=tuple(flags.split()),
        ptxas=_ptxas(),
        numpy_error=numpy_error,
    )


def faults(base: BaseImage, lock: str, pythons: list[str]) -> list[str]:
    """Faults that keep edgeflow from running on this base, each with its mend. pythons: those of the lock."""
    found = []
    if base.python not in pythons:
        found.append(
            f"this base has Python {base.python}, and {lock} holds wheels for Python {' and '.join(pythons)}: "
            f"build with {KNOWN_BASES}, or name a lock for it with --build-arg LOCK=FILE --build-arg DOCS_LOCK=FILE"
        )
    if not base.torch:
        return [*found, f"python3 of this base cannot import torch ({base.torch_error}): build with {KNOWN_BASES}"]
    if not base.cuda:
        found.append(f"torch {base.torch} of this base is a build without CUDA: build with {KNOWN_BASES}")
    if _numbers(base.torch) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        found.append(f"torch {base.torch} of this base is older than {oldest}: build with {KNOWN_BASES}")
    if not base.ptxas:
        package = f"cuda-nvcc-{base.cuda.replace('.', '-')}" if base.cuda else "cuda-nvcc"
        found.append(f"{PTXAS} does not run in this base: add it there (apt-get install {package}), as Triton needs it")
    elif base.cuda and _numbers(base.ptxas)[0] != _numbers(base.cuda)[0]:
        found.append(
            f"{PTXAS} is of CUDA {base.ptxas}, torch of CUDA {base.cuda}: use a base in which both are of one release"
        )
    return found


def faults_installed(base: BaseImage, lock: str) -> list[str]:
    """Faults that came with the wheels of the lock."""
    found = []
    if ENVIRONMENT in base.torch_folder.parents:
        found.append(f"torch {base.torch} in {ENVIRONMENT} hides the base's: take torch out of {lock}")
    if base.numpy_error:
        found.append(
            f"torch {base.torch} of this base cannot use {base.numpy_error}: use a base with a newer torch, "
            f"or an older NumPy in {lock} (scripts/check-wheels)"
        )
    return found


def warnings(base: BaseImage, gpus: list[str]) -> list[str]:
    """Warnings of what may be wrong. gpus: compute capabilities that the image is for, such as 8.7 or 11.0a."""
    found = []
    if base.machine != "aarch64":
        found.append(f"this is a {base.machine} machine: the image will not run on a Jetson, which is aarch64")
    missing = [gpu for gpu in gpus if "sm_" + re.sub(r"\D", "", gpu) not in " ".join(base.gpus)]
    if base.gpus and missing:
        found.append(
            f"torch {base.torch} has kernels for {' '.join(base.gpus)}, none for {' '.join(missing)}: check the base, "
            "and --build-arg ARCHITECTURES (Orin: 8.7, Thor: 11.0a)"
        )
    return found


def pythons_of(lock: str) -> list[str]:
    """The Pythons in the first line of a lock, which `scripts/check-wheels` writes."""
    named = re.match(r"# .*: Python (.*) on ", lock)
    if named is None:
        raise SystemExit("error: the lock's first line names no Python: write it with scripts/check-wheels --update")
    return named[1].split(", ")


def _numbers(version: str) -> tuple[int, int]:
    major, minor = re.findall(r"\d+", f"{version}.0")[:2]
    return int(major), int(minor)


def _ptxas() -> str:
    try:
        told = subprocess.run([PTXAS, "--version"], stdout=subprocess.PIPE, text=True, check=False).stdout
    except OSError:
        return ""
    release = re.search(r"release (\d+\.\d+)", told)
    return release[1] if release else ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the base of Dockerfile.jetson.")
    parser.add_argument("lock", help="file in constraints/")
    parser.add_argument("--gpus", default="", help='compute capabilities, such as "8.7"')
    parser.add_argument("--installed", action="store_true", help="check again, with the wheels of the lock installed")
    options = parser.parse_args()
    pythons, base = pythons_of(Path(options.lock).read_text()), look()
    print(f"Python {base.python}, torch {base.torch or 'missing'}, CUDA {base.cuda or 'missing'}, "
          f"ptxas {base.ptxas or 'missing'}, {base.machine}")  # fmt: skip
    found = faults(base, options.lock, pythons)
    if options.installed:
        found += faults_installed(base, options.lock)
    for text in warnings(base, options.gpus.split()):
        print(f"warning: {text}")
    for text in found:
        print(f"error: {text}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
