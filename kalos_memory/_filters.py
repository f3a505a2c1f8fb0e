"""Filters: a dict of Mongo-style operators, implicitly joined by AND, checked here and again by kalosd.

    {"author": "alice"}                                equality (exact JSON equality: 1 == 1.0, True is not 1)
    {"year": {"$gte": 2020, "$lt": 2024}}              several operators on one key
    {"$or": [{"lang": "en"}, {"tags": {"$contains": "english"}}]}
    {"address.city": {"$in": ["Bonn", "Kyiv"]}}        first a literal key, then a path

    filter     := {key: value | operators, "$and": [filter, ...], "$or": [filter, ...], "$not": filter}
    operators  := {"$eq" | "$ne" | "$gt" | "$gte" | "$lt" | "$lte": value, "$in" | "$nin": [value, ...],
                   "$exists": bool, "$contains" | "$icontains": value, "$subset": object, "$not": operators}

A dict whose first key begins with "$" is taken for operators, any other dict for a value to be equal to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kalos_memory import _abi
from kalos_memory._checks import check_json, encode_json, shown, utf8
from kalos_memory._errors import InvalidRequest

COMPARISONS = ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte")
LISTS = ("$in", "$nin")
OTHERS = ("$exists", "$contains", "$icontains", "$subset")
JOINS = ("$and", "$or")
KNOWN = (*COMPARISONS, *LISTS, *OTHERS, *JOINS, "$not")


def encode_filter(filter: object) -> bytes:
    """A filter as JSON, or InvalidRequest in words."""
    if isinstance(filter, Mapping) and not isinstance(filter, dict):
        filter = dict(filter)
    if not isinstance(filter, dict):
        raise InvalidRequest(
            f"filter must be a dict such as {{'year': {{'$gte': 2020}}}}, not a {type(filter).__name__}:"
            f" {shown(filter)}"
        )
    operators = _check_filter(filter, "filter", 1)
    if operators > _abi.MAX_FILTER_OPERATORS:
        raise InvalidRequest(
            f"the filter has {operators} operators: at most {_abi.MAX_FILTER_OPERATORS} are possible"
            " ($in takes a list of values as one operator)"
        )
    return utf8(encode_json(filter), "the filter")


def _check_filter(filter: dict[Any, Any], path: str, depth: int) -> int:
    """Checks one filter; returns how many operators it has."""
    _check_depth(path, depth)
    operators = 0
    for key, value in filter.items():
        if not isinstance(key, str):
            raise InvalidRequest(f"{path} has a key that is a {type(key).__name__}: {shown(key)}; keys are str")
        where = f"{path}[{shown(key)}]"
        if key in JOINS:
            if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
                raise InvalidRequest(f"{where} must be a list of filters, each a dict")
            operators += 1 + sum(_check_filter(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value))
        elif key == "$not":
            if not isinstance(value, dict):
                raise InvalidRequest(f"{where} must be a filter, a dict")
            operators += 1 + _check_filter(value, where, depth + 1)
        elif key.startswith("$"):
            wrong = "an operator of a key stands where a key is expected" if key in KNOWN else "unknown operator"
            raise InvalidRequest(
                f"{where}: {wrong};"
                f" {', '.join(JOINS)} and $not may stand here, {', '.join((*COMPARISONS, *LISTS, *OTHERS))} below a key"
            )
        elif is_operators(value):
            operators += _check_operators(value, where, depth)
        else:
            check_json(value, where, 0, _abi.MAX_METADATA_DEPTH)
            operators += 1
    return operators


def matches_everything(filter: Mapping[Any, Any]) -> bool:
    """Does the filter say nothing, like {} or {"$and": []}? One that happens to match all rows does say something."""
    return all(
        key == "$and"
        and isinstance(value, list)
        and all(isinstance(f, Mapping) and matches_everything(f) for f in value)
        for key, value in filter.items()
    )


def is_operators(value: object) -> bool:
    """Is this what follows a key a dict of operators (rather than a value to be equal to)?"""
    return isinstance(value, dict) and any(isinstance(key, str) and key.startswith("$") for key in value)


def _check_operators(operators: dict[Any, Any], path: str, depth: int) -> int:
    _check_depth(path, depth)
    count = 0
    for name, value in operators.items():
        where = f"{path}[{shown(name)}]"
        if name not in KNOWN or name in JOINS:
            raise InvalidRequest(
                f"{where}: unknown operator; known below a key are {', '.join((*COMPARISONS, *LISTS, *OTHERS, '$not'))}"
            )
        count += 1
        if name == "$not":
            if not is_operators(value):
                raise InvalidRequest(f"{where} must be a dict of operators, for example {{'$not': {{'$gt': 3}}}}")
            count += _check_operators(value, where, depth + 1)
            continue
        if name in LISTS:
            if not isinstance(value, list):
                raise InvalidRequest(f"{where} must be a list of values, not a {type(value).__name__}")
            if len(value) > _abi.MAX_FILTER_LIST:
                raise InvalidRequest(
                    f"{where} has {len(value):,} values: at most {_abi.MAX_FILTER_LIST:,} are possible"
                )
        elif name == "$exists":
            if not isinstance(value, bool):
                raise InvalidRequest(f"{where} must be True or False, not {shown(value)}")
        elif name == "$subset" and not isinstance(value, dict):
            raise InvalidRequest(f"{where} must be a dict, not a {type(value).__name__}")
        check_json(value, where, 0, _abi.MAX_METADATA_DEPTH)
    return count


def _check_depth(path: str, depth: int) -> None:
    if depth > _abi.MAX_FILTER_DEPTH:
        raise InvalidRequest(f"{path[:200]} is nested deeper than {_abi.MAX_FILTER_DEPTH} levels")
