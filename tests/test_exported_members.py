"""The public surface is what kalos_memory exports, and importing it is light."""

import subprocess
import sys
import types

import kalos_memory as kalos


def test_all_is_sorted_and_whole():
    """Everything public is in __all__, everything in __all__ exists."""
    assert kalos.__all__ == sorted(kalos.__all__)
    public = {
        name
        for name, value in vars(kalos).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType) and name not in ("annotations", "Any")
    }
    assert public - {"TYPE_CHECKING"} <= set(kalos.__all__)
    for name in kalos.__all__:
        assert getattr(kalos, name) is not None
    assert set(kalos.__all__) <= set(dir(kalos))


def test_names_say_where_they_come_from():
    """Error messages, pickles and documentation name the public module."""
    for name in kalos.__all__:
        assert getattr(kalos, name).__module__ == "kalos_memory", name


def test_unknown_name_is_an_attribute_error():
    assert not hasattr(kalos, "no_such_name")


def test_version_is_a_string():
    assert isinstance(kalos.__version__, str)


def test_import_is_light():
    """Importing the package brings in neither torch nor asyncio nor the command line."""
    heavy = ["torch", "asyncio", "typer", "rich", "sentence_transformers", "importlib.metadata", "kalos_memory._memory"]
    code = f"import sys, kalos_memory; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
