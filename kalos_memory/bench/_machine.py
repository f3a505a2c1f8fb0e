"""The machine, named: a figure without one means nothing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kalos_memory.cli._version import version

BUSY = "Other work keeps this machine busy: the figures below say more about that than about what is measured."


def describe() -> dict[str, Any]:
    """CPU, cores, memory, GPU, kernel, Python, numpy and its BLAS, versions of Kalos, load average, date (UTC)."""
    import numpy

    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": gpus(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()).strip(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "numpy": numpy.__version__,
        "blas": blas(),
        "openblas_coretype": os.environ.get("OPENBLAS_CORETYPE"),
        "kalos": version(),
        "load_average": load_average(),
    }


def load_average() -> list[float]:
    """Over 1, 5 and 15 minutes: other work on the machine shows here."""
    return [round(value, 2) for value in os.getloadavg()]


def cpu_model(cpuinfo: str | None = None) -> str:
    """The processor's name from /proc/cpuinfo (aarch64 has none there: then its part number)."""
    if cpuinfo is None:
        try:
            cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return platform.processor() or "unknown"
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, separator, value = line.partition(":")
        if separator:
            fields.setdefault(key.strip().lower(), value.strip())
    if "model name" in fields:
        return fields["model name"]
    if "cpu part" in fields:
        return f"{platform.machine()} implementer {fields.get('cpu implementer', '?')} part {fields['cpu part']}"
    return platform.processor() or "unknown"


def blas() -> list[dict[str, Any]] | None:
    """The BLAS libraries in this process: name, version, kernel, threads. None: threadpoolctl is not installed."""
    try:
        import threadpoolctl
    except ImportError:
        return None
    return [
        {
            "library": pool.get("internal_api"),
            "version": pool.get("version"),
            "kernel": pool.get("architecture"),
            "threads": pool.get("num_threads"),
        }
        for pool in threadpoolctl.threadpool_info()
        if pool.get("user_api") == "blas"
    ]


def gpus() -> list[str]:
    """Names of the NVIDIA GPUs with their drivers, as nvidia-smi has them; empty where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()] if answer.returncode == 0 else []


def file_system(path: str | os.PathLike[str]) -> str:
    """The type of the file system that a path lies on (ext4, tmpfs, …), from /proc/mounts; "unknown" without it."""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "unknown"
    target = os.path.realpath(path)
    best, kind = "", "unknown"
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def words(machine: dict[str, Any]) -> list[str]:
    """Two or three lines for the head of a report."""
    memory = machine["memory_bytes"] / 2**30
    kernels = ", ".join(
        f"{pool['library']} {pool['version']} {pool['kernel'] or ''}".strip() + f" x{pool['threads']}"
        for pool in machine["blas"] or []
    )
    load = ", ".join(f"{value:.2f}" for value in machine["load_average"])
    return [
        f"{machine['cpu']}, {machine['usable_cores']} of {machine['cores']} cores, {memory:.0f} GiB"
        + (f", {'; '.join(machine['gpus'])}" if machine["gpus"] else ", no GPU"),
        f"Linux {machine['kernel']}, {machine['python']}, numpy {machine['numpy']}"
        + (f" ({kernels})" if kernels else " (BLAS unknown: threadpoolctl is not installed)")
        + f", kalos {machine['kalos']}",
        f"{machine['date']}, load average {load}"
        + (f", OPENBLAS_CORETYPE={machine['openblas_coretype']}" if machine["openblas_coretype"] else ""),
        *([BUSY] if machine["load_average"][0] > machine["usable_cores"] / 2 else []),
    ]
