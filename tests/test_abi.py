"""The Python side of the contract is that of native/include/kalos/abi.h, as kalosd prints it."""

import json
import re
import struct
import subprocess
from pathlib import Path

import pytest

from kalos_memory import _abi


@pytest.fixture(scope="module")
def printed(kalosd):
    return json.loads(subprocess.run([kalosd, "--print-abi"], capture_output=True, check=True, timeout=60).stdout)


def test_versions(printed):
    assert (printed["abi_major"], printed["abi_minor"]) == (_abi.ABI_MAJOR, _abi.ABI_MINOR)


def test_every_constant_is_known_and_equal(printed):
    """No limit, opcode, status or flag differs or is missing on either side."""
    ours = {f"KALOS_{name}": value for name, value in vars(_abi).items() if name.isupper() and isinstance(value, int)}
    assert ours == printed["constants"]


def test_every_struct_is_known(printed):
    assert set(_abi.LAYOUTS) == set(printed["structs"])


@pytest.mark.parametrize("name", sorted(_abi.LAYOUTS))
def test_layout(printed, name):
    """Every field of every struct lies where kalosd has it, with its size, and nothing lies between."""
    text, fields = _abi.LAYOUTS[name]
    tokens = _abi._tokens(text)
    offset = 0
    ours = {}
    for token, field in zip(tokens, fields, strict=True):
        size = struct.calcsize("<" + token)
        ours[field] = {"offset": offset, "bytes": size}
        assert _abi.offset_of(name, field) == offset
        offset += size
    assert ours == printed["structs"][name]["fields"]
    assert offset == printed["structs"][name]["bytes"] == _abi.layout(name).size


ROOT = Path(__file__).parent.parent


def test_limits_are_the_same_wherever_they_are_told(printed, client):
    """abi.h, `kalosd --print-abi`, docs/abi.md and the report of a running kalosd name the same limits, each with the
    same number, and none is missing anywhere."""
    header = (ROOT / "native/include/kalos/abi.h").read_text()
    block = re.search(r"-- limits --+ \*/(.*?)-- control --+ \*/", header, re.DOTALL)
    assert block is not None
    in_header = {name: int(value) for name, value in re.findall(r"#define (KALOS_\w+) (\d+)", block[1])}
    assert len(in_header) > 20
    assert {name: printed["constants"].get(name) for name in in_header} == in_header
    prefixes = ("KALOS_MAX_", "KALOS_MIN_", "KALOS_DEFAULT_")
    assert {name for name in printed["constants"] if name.startswith(prefixes)} <= set(in_header)
    page = (ROOT / "docs/abi.md").read_text().split("## 7. Limits")[1]
    rows = re.findall(r"^\| `(KALOS_\w+)` \| ([\d,]+) \|", page, re.MULTILINE)
    assert {name: int(value.replace(",", "")) for name, value in rows} == in_header
    assert client.stats()["limits"]["contract"] == in_header


def test_the_report_tells_the_limits_in_force(client):
    """What bounds this kalosd beside the contract: memory, waiting writes, descriptors, address space."""
    stats = client.stats()
    limits = stats["limits"]
    assert limits["memory_bytes"] == stats["database"]["memory_limit"] > 0
    assert limits["waiting_write_bytes"] == 1 << 30
    proc = Path(f"/proc/{stats['kalosd']['pid']}/limits").read_text()
    (descriptors,) = re.findall(r"^Max open files +(\d+)", proc, re.MULTILINE)
    assert limits["descriptors"] == int(descriptors)
    (space,) = re.findall(r"^Max address space +(\w+)", proc, re.MULTILINE)
    assert limits["address_space_bytes"] == (None if space == "unlimited" else int(space))
