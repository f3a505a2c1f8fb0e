"""The Python side of the contract is that of native/include/kalos/abi.h, as kalosd prints it."""

import json
import struct
import subprocess

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
