"""A real file system that is full, read-only or forbidden as the data directory, from the client's side.

The mounts live in a mount namespace of their own, which ends with the process that runs in it: the functions named
`inside_…` are that process.
"""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import kalos_memory as kalos
from kalos_memory import _sidecar

EXIT_UNUSABLE = 4
VECTOR = [1.0, 0.0, 0.0, 0.0]


def run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=60)


def start_in_vain(data_dir: str, user: int | None = None) -> str:
    """-> the last words of a kalosd that must not start."""
    result = subprocess.run(
        [_sidecar.find_kalosd(), "--data-dir", data_dir, "--idle-s", "1"],
        capture_output=True,
        text=True,
        timeout=60,
        user=user,
        stdin=subprocess.DEVNULL,
    )
    assert result.returncode == EXIT_UNUSABLE, (result.returncode, result.stderr)
    return result.stderr


@pytest.fixture
def in_namespace(kalosd: str, tmp_path: Path) -> Callable[[str], None]:
    """Runs a function of this file in a mount namespace of its own, with a directory to mount on."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)]
    try:
        works = subprocess.run(probe, capture_output=True, timeout=60).returncode == 0
    except FileNotFoundError:
        works = False
    if not works:
        pytest.skip("this container may not make a mount namespace")

    def inside(name: str) -> None:
        program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import {Path(__file__).stem} as t; "
        result = subprocess.run(
            ["unshare", "-m", sys.executable, "-c", program + f"t.{name}(sys.argv[1])", str(tmp_path)],
            env={**os.environ, "KALOSD": kalosd},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert result.returncode == 0, result.stdout + result.stderr

    return inside


def upsert(notes: kalos.Collection, batch: int) -> None:
    ids = [f"{batch}-{row}" for row in range(3)]
    notes.upsert(ids, [VECTOR] * 3, texts=[f"{batch} " + "x" * 20_000] * 3, metadatas=[{"batch": batch}] * 3)


def full(file: io.RawIOBase) -> bool:
    """Writes another page into the file: does that not go any more?"""
    try:
        return not file.write(b"f" * 4096)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return True


def batches_in(notes: kalos.Collection) -> dict[int, int]:
    counted: dict[int, int] = {}
    for hit in notes.scan(include=("text", "metadata")):
        assert hit.metadata is not None
        assert hit.text == f"{hit.metadata['batch']} " + "x" * 20_000
        counted[hit.metadata["batch"]] = counted.get(hit.metadata["batch"], 0) + 1
    return counted


def inside_full_disk(data_dir: str) -> None:
    run("mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", data_dir)
    acknowledged: dict[int, int] = {}
    words = ""
    try:
        with kalos.connect(data_dir, timeout=30.0) as client:
            notes = client.collection("notes", dimension=4)
            for batch in range(1000):
                try:
                    upsert(notes, batch)
                except kalos.StoreError as error:
                    words = str(error)
                    break
                acknowledged[batch] = 3
            assert "the disk is full" in words, words
            assert len(acknowledged) > 5
            for _ in range(3):  # it stays so, and reads go on
                with pytest.raises(kalos.StoreError, match="the disk is full"):
                    upsert(notes, 2000)
                assert batches_in(notes) == acknowledged
                assert notes.search(VECTOR, k=1)[0].id == "0-0"
            run("mount", "-o", "remount,size=32m", data_dir)
            upsert(notes, 3000)  # by the same kalosd, with no restart
            acknowledged[3000] = 3
            assert batches_in(notes) == acknowledged
        assert _sidecar.stop(data_dir, timeout=60) is not None
        with kalos.connect(data_dir, timeout=30.0) as client:
            assert batches_in(client.collection("notes")) == acknowledged
    finally:
        _sidecar.stop(data_dir, timeout=60)


def inside_full_at_start(data_dir: str) -> None:
    run("mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", data_dir)
    try:
        with kalos.connect(data_dir, timeout=30.0) as client:
            upsert(client.collection("notes", dimension=4), 1)
        assert _sidecar.stop(data_dir, timeout=60) is not None
        filler = Path(data_dir, "filler")
        with open(filler, "wb", buffering=0) as file:
            while not full(file):
                pass
        words = ""
        try:
            with kalos.connect(data_dir, timeout=30.0) as client:
                notes = client.collection("notes", dimension=4)
                assert batches_in(notes) == {1: 3}
                upsert(notes, 2)
        except kalos.KalosError as error:
            words = str(error)
        assert "full" in words or "No space left" in words, words
        filler.unlink()
        with kalos.connect(data_dir, timeout=30.0) as client:
            notes = client.collection("notes", dimension=4)
            assert batches_in(notes) == {1: 3}
            upsert(notes, 2)
            assert batches_in(notes) == {1: 3, 2: 3}
    finally:
        _sidecar.stop(data_dir, timeout=60)


def inside_read_only(data_dir: str) -> None:
    run("mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", data_dir)
    with kalos.connect(data_dir, timeout=30.0) as client:
        upsert(client.collection("notes", dimension=4), 1)
    assert _sidecar.stop(data_dir, timeout=60) is not None
    end = time.monotonic() + 60
    # The lock is free a moment before the process has closed its last file.
    while subprocess.run(["mount", "-o", "remount,ro", data_dir], capture_output=True, timeout=60).returncode != 0:
        assert time.monotonic() < end, "the file system stays busy"
        time.sleep(0.02)
    words = start_in_vain(data_dir)
    assert "read-only" in words.lower(), words
    assert data_dir in words, words
    with pytest.raises(kalos.SidecarUnavailable, match=r"(?i)read-only"):
        kalos.connect(data_dir)
    run("mount", "-o", "remount,rw", data_dir)
    try:
        with kalos.connect(data_dir, timeout=30.0) as client:
            assert batches_in(client.collection("notes")) == {1: 3}
    finally:
        _sidecar.stop(data_dir, timeout=60)


def test_a_disk_that_fills_up(in_namespace):
    """Promise: the write that meets a full disk is refused in words and changes nothing, reads go on, and when there is
    room again writes pass, without a restart."""
    in_namespace("inside_full_disk")


def test_a_disk_that_is_full_at_the_start(in_namespace):
    """Promise: on a full disk kalosd starts or says why not, and nothing is lost when room is made."""
    in_namespace("inside_full_at_start")


def test_a_read_only_file_system(in_namespace):
    """Promise: exit code 4 and words, and the store is as it was."""
    in_namespace("inside_read_only")


def test_a_directory_without_permission(kalosd, tmp_path):
    """Promise: exit code 4 and words that name the directory."""
    if os.geteuid() == 0:
        # The user must reach the program too, so it is only tried where that holds.
        user = 65534
        if subprocess.run([kalosd, "--version"], user=user, capture_output=True, timeout=60).returncode != 0:
            pytest.skip("another user cannot run this kalosd")
        where = Path("/tmp") / f"kalos-test-forbidden-{os.getpid()}"
    else:
        user, where = os.geteuid(), tmp_path / "forbidden"
    where.mkdir(mode=0o500)
    try:
        if os.geteuid() == 0:
            os.chown(where, user, user)
        words = start_in_vain(str(where), user)
        assert "Permission denied" in words, words
        assert str(where) in words, words
    finally:
        where.chmod(0o700)
        where.rmdir()


def test_a_path_that_is_no_directory(kalosd, tmp_path):
    """Promise: exit code 4 and words."""
    path = tmp_path / "file"
    path.write_text("x")
    assert "is not a directory" in start_in_vain(str(path))
    assert path.read_text() == "x"
