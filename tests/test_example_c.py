"""The promises of examples/c: the line of its page builds it without a warning, it prints what the page shows, Python
reads what it wrote, and whatever is wrong with kalosd ends it in words, in time, with exit code 1."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import posix_ipc
import pytest
from conftest import stopped, wait_until

import kalos_memory as kalos

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "examples" / "c" / "README.md").read_text()
SHOWN = PAGE[PAGE.index("```text\n") + 8 :].split("```")[0]

LANE_BYTES, SLOT_BYTES = 4096 + 16384, 16384
HELLO, WELCOME, ATTACHED, READY = 1, 2, 3, 4


def build(program: Path, include: Path = ROOT / "native" / "include") -> Path:
    """Runs the page's line with the system's compiler. Skips where there is none."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", ""), "gcc", "clang", "cc"))), None)
    if compiler is None:
        pytest.skip("there is no C compiler on this machine: neither $CC, gcc, clang nor cc is a program")
    (line,) = re.findall(r"^    gcc (.+)$", PAGE, re.MULTILINE)
    words = shlex.split(line)
    words[words.index("-o") + 1] = str(program)
    words[words.index("-I") + 1] = str(include)
    done = subprocess.run(
        [compiler, "-Werror", *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("example") / "kalos_example")


def run(program: Path, data_dir: str | os.PathLike[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KALOS_DATA_DIR": str(data_dir)}
    return subprocess.run([program], env=environment, capture_output=True, text=True, timeout=60, check=False)


def assert_fails(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert (done.returncode, done.stdout) == (1, ""), done
    assert done.stderr.startswith("kalos_example: ")
    assert done.stderr.count("\n") == 1
    assert [part for part in words if part not in done.stderr] == [], done.stderr


def test_python_reads_what_it_wrote(example: Path, client: kalos.Client, data_dir: str) -> None:
    """Promise: it prints what its page shows, the second time too; Python finds the same rows, ids, texts, metadata and
    scores; and its lane is gone afterwards."""
    for _ in range(2):
        done = run(example, data_dir)
        assert (done.returncode, done.stdout, done.stderr) == (0, SHOWN, "")

    collection = client.collection("c-example", dimension=3)
    hits = collection.search([0.8, 0.6, 0.0], k=10)
    assert [(hit.id, hit.text, hit.metadata) for hit in hits] == [
        ("sister", "Her sister Bea lives in Lisbon.", {"topic": "family"}),
        ("allergy", "Alice is allergic to peanuts.", {"topic": "health"}),
        ("staging", "The staging server restarts at four.", {"topic": "work", "hour": 4}),
    ]
    printed = "".join(f"{hit.id} {hit.score:.4f} {hit.text}\n" for hit in hits[:2])
    assert printed == SHOWN.split("\n", 1)[1]
    assert [hit.id for hit in collection.search([0.0, 0.0, 1.0], k=1, filter={"hour": 4})] == ["staging"]
    wait_until(lambda: client.stats()["lanes"]["count"] == 1, "only this test's own lane is left")


def is_refused(path: str) -> bool:
    """A killed process's descriptors go some time after it has left /proc: only the socket itself tells."""
    with socket.socket(socket.AF_UNIX) as knock:
        return knock.connect_ex(path) == errno.ECONNREFUSED


def test_no_kalosd(
    example: Path, client: kalos.Client, data_dir: str, tmp_path: Path, sidecar_pid: Callable[[kalos.Client], int]
) -> None:
    """Promise: where none ever ran, and where one was killed and left its lock file, it says how to start one."""
    assert_fails(run(example, tmp_path / "never"), "no kalosd runs there", "start one with `kalos serve`")
    path = client.stats()["kalosd"]["socket"]
    os.kill(sidecar_pid(client), signal.SIGKILL)
    wait_until(lambda: is_refused(path), "nobody listens any more")
    assert_fails(run(example, data_dir), "no kalosd runs there", "nobody listens on", "start one with `kalos serve`")


def test_refused_request(example: Path, client: kalos.Client, data_dir: str) -> None:
    """Promise: kalosd's own words are told."""
    client.collection("c-example", dimension=2)
    assert_fails(
        run(example, data_dir), "kalosd refuses request", 'collection "c-example" has dimension 2, 3 was given'
    )


def test_other_abi(client: kalos.Client, data_dir: str, tmp_path: Path) -> None:
    """Promise: built from a header of another major version it is refused in words, and touches nothing."""
    header = (ROOT / "native" / "include" / "kalos" / "abi.h").read_text()
    other = re.sub(r"(#define KALOS_ABI_MAJOR) \d+", r"\1 77", header)
    (tmp_path / "kalos").mkdir()
    (tmp_path / "kalos" / "abi.h").write_text(other)
    done = run(build(tmp_path / "kalos_example", tmp_path), data_dir)
    assert_fails(done, "kalosd refuses this client", "the client speaks ABI 77")
    assert client.stats()["database"]["collections"] == []


def test_stuck_kalosd(
    example: Path, client: kalos.Client, data_dir: str, sidecar_pid: Callable[[kalos.Client], int]
) -> None:
    """Promise: a kalosd that takes the connection and is silent is given up."""
    with stopped(sidecar_pid(client)):
        assert_fails(run(example, data_dir), "does not answer: it is stopped or stuck")


class Impostor:
    """Attaches one client as docs/abi.md says, and then closes the socket (dies) or keeps it (hangs)."""

    def __init__(self, data_dir: Path, dies: bool) -> None:
        self.dies = dies
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.settimeout(30)
        self.listener.bind(str(data_dir / "kalosd.sock"))
        self.listener.listen()
        (data_dir / "kalosd.lock").write_text(json.dumps({"socket": str(data_dir / "kalosd.sock")}).ljust(4095) + "\n")

    def frame(self, control: socket.socket, wanted: int, kind: int, body: dict[str, object]) -> None:
        _, got, _, size, _ = struct.unpack("<IHHII", control.recv(16, socket.MSG_WAITALL))
        assert got == wanted
        control.recv(size, socket.MSG_WAITALL)
        data = json.dumps(body).encode()
        control.sendall(struct.pack("<IHHII", 0x31434C4B, kind, 0, len(data), 0) + data)

    def serve(self) -> None:
        names = [f"/kl.test-{os.getpid()}-{number}" for number in range(4)]
        with ExitStack() as stack:
            stack.callback(self.listener.close)
            memory = posix_ipc.SharedMemory(names[0], posix_ipc.O_CREX, size=LANE_BYTES)
            stack.callback(memory.unlink)
            header = struct.pack("<QHHIQIIII", 0x314E4C534F4C414B, 1, 0, 4096, LANE_BYTES, 1, SLOT_BYTES, 256, 2)
            os.pwrite(memory.fd, header, 0)
            memory.close_fd()
            semaphores = [posix_ipc.Semaphore(name, posix_ipc.O_CREX) for name in names[1:]]
            for semaphore in semaphores:
                stack.callback(semaphore.close)
                stack.callback(semaphore.unlink)
            control, _ = self.listener.accept()
            control.settimeout(30)
            stack.callback(control.close)
            lane = {
                "name": names[0],
                "lane_bytes": LANE_BYTES,
                "slot_count": 1,
                "slot_bytes": SLOT_BYTES,
                "request_semaphore": names[1],
                "reply_semaphores": names[2:],
            }
            self.frame(control, HELLO, WELCOME, {"abi_major": 1, "deadline": "absolute", "lane": lane})
            self.frame(control, ATTACHED, READY, {})
            semaphores[0].acquire(30)
            if not self.dies:
                assert control.recv(1) == b"", "until the client leaves"


@contextmanager
def impostor(dies: bool) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kalos-test-") as name:
        thread = threading.Thread(target=Impostor(Path(name), dies).serve)
        thread.start()
        yield Path(name)
        thread.join(60)
        assert not thread.is_alive()


def test_kalosd_dies_while_it_works(example: Path) -> None:
    """Promise: a request that was posted and is never answered ends with the socket."""
    with impostor(dies=True) as data_dir:
        assert_fails(run(example, data_dir), "kalosd ended before it answered")


def test_kalosd_hangs_while_it_works(example: Path) -> None:
    """Promise: a request that was posted and is never answered ends with its deadline."""
    with impostor(dies=False) as data_dir:
        assert_fails(run(example, data_dir), "kalosd did not answer within")
