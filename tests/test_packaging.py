"""The promises of the package as it is installed: one build, kalosd inside, nothing of the checkout needed."""

from __future__ import annotations

import email.parser
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MINUTES = 60.0

pytestmark = pytest.mark.timeout(15 * MINUTES)


def version_of_project() -> str:
    """The version in pyproject.toml, read without tomllib, which CPython 3.10 lacks."""
    match = re.search(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert match
    return match.group(1)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the checkout without what git ignores, as `pip install .` would build it."""
    for need in ("scikit_build_core", "build"):
        pytest.importorskip(need, reason=f"{need} is not installed: pip install -e '.[dev]'")
    if shutil.which("cmake") is None or not (ROOT / ".git").exists():
        pytest.skip("building a wheel needs cmake and a git checkout")
    source = tmp_path_factory.mktemp("source")
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True).stdout
    for name in filter(None, names.decode().split("\0")):
        if (ROOT / name).is_file():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    environment = {**os.environ, "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1)}
    made = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=12 * MINUTES)
    assert made.returncode == 0, made.stdout[-4000:] + made.stderr[-4000:]
    [path] = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of a fresh environment with the wheel in it and this environment's packages behind it."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True, timeout=2 * MINUTES)
    # Dependencies come from the environment that runs the tests. A path file, unlike PYTHONPATH, puts them after the
    # wheel's own files and does not run the path files in there, so that the checkout stays out.
    ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    purelib = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()
    (Path(purelib) / "behind.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def run(python: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs python outside the checkout, with nothing of this environment's paths."""
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "KALOSD"}}
    environment["KALOS_DATA_DIR"] = str(cwd / "data")
    return subprocess.run(
        [python, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=2 * MINUTES
    )


def test_wheel_carries_kalosd_and_nothing_else_native(wheel: Path) -> None:
    """One program inside the package, executable; no extension module, no tests, no sources of kalosd."""
    with zipfile.ZipFile(wheel) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
    program = entries["kalos_memory/bin/kalosd"]
    assert (program.external_attr >> 16) & stat.S_IXUSR
    assert "kalos_memory/py.typed" in entries
    strays = [
        name
        for name in entries
        if not re.match(r"kalos_memory/([\w/]+\.py|py\.typed|bin/kalosd)$|kalos_memory-[\d.]+\.dist-info/", name)
    ]
    assert strays == []


def test_wheel_says_what_it_is(wheel: Path) -> None:
    """Any Python 3 on this platform; name, version, licence, Python and dependencies as pyproject.toml has them."""
    with zipfile.ZipFile(wheel) as archive:
        [metadata_name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.parser.Parser().parsestr(archive.read(metadata_name).decode())
        licences = [name for name in archive.namelist() if name.endswith("LICENSE")]
    assert wheel.name.startswith(f"kalos_memory-{version_of_project()}-py3-none-")
    assert not wheel.name.endswith("-any.whl")
    assert metadata["Name"] == "kalos-memory"
    assert metadata["Version"] == version_of_project()
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert licences
    needed = {re.split(r"[^\w-]", line)[0] for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert needed == {"numpy", "posix-ipc", "rich", "typer"}


def test_installed_kalosd_has_the_package_version(installed: Path, tmp_path: Path) -> None:
    """pyproject.toml is the only source of the version: kalosd and the package both say it."""
    code = """
import importlib.metadata, pathlib, subprocess, kalos_memory
program = pathlib.Path(kalos_memory.__file__).parent / "bin" / "kalosd"
print(importlib.metadata.version("kalos-memory"))
print(subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.split()[-1])
print(kalos_memory.__file__)
"""
    done = run(installed, "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    package, program, place = done.stdout.split()
    assert package == program == version_of_project()
    assert not Path(place).is_relative_to(ROOT)


def test_installed_package_remembers_and_recalls(installed: Path, tmp_path: Path) -> None:
    """A program that knows only the installed package starts a sidecar, writes and searches."""
    script = tmp_path / "program.py"
    script.write_text("""
import kalos_memory as kalos

with kalos.connect(":memory:") as client:
    notes = client.collection("notes", dimension=2)
    notes.upsert(["a", "b"], [[1.0, 0.0], [0.0, 1.0]], texts=["east", "north"])
    print([(hit.id, hit.text, hit.score) for hit in notes.search([1.0, 0.0], k=2)])
""")
    done = run(installed, "-W", "error", str(script), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[('a', 'east', 1.0), ('b', 'north', 0.0)]\n"


def test_installed_command_line_answers(installed: Path, tmp_path: Path) -> None:
    """`kalos --help` works from the installed script."""
    done = run(installed, str(installed.parent / "kalos"), "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "recall" in done.stdout
