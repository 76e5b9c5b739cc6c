"""Compiles the products in C++ for the processor of this machine: python -m edgeflow.kernels.native.build

The library is stamped with the sources, the flags and torch's OpenMP runtime, which it shares.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

FOLDER = Path(__file__).parent
BUILT = FOLDER / "built"
FLAGS = ("-O3", "-std=c++17", "-fPIC")
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni")
_X86 = {"avx512": _AVX512, "avx2": _AVX2}
SETS = {"x86_64": {**_X86, "portable": ()}}
"""Flags of the instruction sets that are built, by machine; other machines have only the portable one."""

MAPPED = Path("/proc/self/maps")
MAPPED_FIELDS = 5
"""Fields of a line before the path, which may have spaces."""
RUNTIMES = ("libgomp", "libiomp5")
"""OpenMP runtimes that have the functions which GCC calls."""


def main() -> None:
    """Build the library; exit code 1 with the reason where that is not possible."""
    try:
        print(f"built {build()}")
    except (OSError, subprocess.CalledProcessError) as error:
        said = error.stderr if isinstance(error, subprocess.CalledProcessError) else error
        sys.exit(f"the products in C++ were not built: {said}")


def build(folder: Path = BUILT) -> Path:
    """Compile and link, then put the library in its place; OSError or CalledProcessError says what failed."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise OSError("there is no C++ compiler: install g++ or set CXX")
    target = library_path(folder)
    folder.mkdir(exist_ok=True)
    runtime = openmp_runtime()
    with tempfile.TemporaryDirectory(dir=folder) as work:
        objects = [
            _compiled(
                compiler,
                "products.cpp",
                Path(work) / f"{name}.o",
                (*flags, f'-DLANES="lanes_{name}.h"', f"-DPRODUCTS={name}"),
            )
            for name, flags in instruction_sets().items()
        ]
        entry = _compiled(compiler, "entry.cpp", Path(work) / "entry.o", ("-fopenmp",) if runtime else ())
        made = Path(work) / target.name
        linked = [str(runtime)] if runtime else []
        _run([compiler, "-shared", "-o", str(made), *map(str, (entry, *objects)), *linked])
        for old in folder.glob(_name("*")):
            old.unlink()
        return made.replace(target)


def library_path(folder: Path = BUILT) -> Path:
    """Where the library of these sources lies; another version of them has another name."""
    runtime = openmp_runtime()
    made_with = FLAGS, instruction_sets(), runtime.name if runtime else "", torch.__version__
    stamp = hashlib.sha256(repr(made_with).encode())
    for source in sorted((*FOLDER.glob("*.cpp"), *FOLDER.glob("*.h"))):
        stamp.update(source.read_bytes())
    return folder / _name(stamp.hexdigest()[:16])


def _name(stamp: str) -> str:
    """The file name of a library. Environments with another torch have their own."""
    return f"products-{torch.__version__}-{stamp}.so"


def instruction_sets() -> dict[str, tuple[str, ...]]:
    """The flags of each instruction set that is built, best first."""
    return SETS.get(platform.machine(), {"portable": ()})


def openmp_runtime() -> Path | None:
    """The OpenMP runtime that torch has loaded; None where there is none, and products take one thread."""
    if not MAPPED.is_file():
        return None
    mapped = (line.split(maxsplit=MAPPED_FIELDS) for line in MAPPED.read_text().splitlines())
    files = {Path(fields[MAPPED_FIELDS]) for fields in mapped if len(fields) > MAPPED_FIELDS}
    return next((file for file in sorted(files) if file.name.startswith(RUNTIMES)), None)


def _compiled(compiler: str, source: str, out: Path, flags: Sequence[str]) -> Path:
    _run([compiler, *FLAGS, *flags, "-c", str(FOLDER / source), "-o", str(out)])
    return out


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


if __name__ == "__main__":
    main()
