"""Filters of LangChain, LangGraph and LlamaIndex as filters of Kalos (_filters.py): the one place where they are told.

No framework is imported: their objects are known by their attributes. What cannot be said exactly is InvalidRequest in
words, never a filter that finds other rows. Each function returns a dict; {} matches every row.

    LangChain, dicts       key: value                     equal; None also where the key is missing
                           key: {op: operand, ...}        $eq $ne $gt $gte $lt $lte $in $nin $exists $contains
                                                          $icontains $subset $not, and $between $not_contains $like
                                                          $ilike; each also without its "$"
                           $and $or $not                  of filters; also without their "$"
    LangChain, queries     Comparison: eq ne gt gte lt lte contain like in nin; Operation: and or not; StructuredQuery
    LangGraph, stores      key: value                     equal; None also where the key is missing; an object matches
                                                          one that has at least its members; lists are equal as a whole
                           key: {op: operand, ...}        the operators of LangGraph ($eq $ne $gt $gte $lt $lte) and all
                                                          others of Kalos
    LlamaIndex             MetadataFilters: and or not, nested; the fourteen operators, by the table in _LLAMA_INDEX

Two things are as in Kalos everywhere: True is not 1, and a value of another type never matches a range nor raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kalos_memory._checks import shown
from kalos_memory._errors import InvalidRequest

Filter = dict[str, Any]

NOTHING: Filter = {"$or": []}  # matches no row
_OF_A_STRING: Filter = {"$gte": ""}  # holds of every string and of nothing else

# ---------------------------------------------------------------------------------------------- combining ------------


def _all(filters: list[Filter]) -> Filter:
    """As flat as can be: a filter may have 64 operators and be 16 deep."""
    merged: Filter = {}
    rest: list[Filter] = []
    for one in filters:
        if merged.keys().isdisjoint(one):
            merged.update(one)
        else:
            rest.append(one)
    return {"$and": [merged, *rest]} if rest else merged


def _any(filters: list[Filter]) -> Filter:
    return filters[0] if len(filters) == 1 else {"$or": filters}


def _none(filters: list[Filter]) -> Filter:
    return {"$not": _any(filters)}


# ---------------------------------------------------------------------------------------------- one operator ---------


def _value(value: Any) -> Any:
    """A tuple is stored as a list, and so it is looked for as one."""
    if isinstance(value, Mapping):
        return {key: _value(member) for key, member in value.items()}
    return [_value(item) for item in value] if isinstance(value, (list, tuple)) else value


def _list(name: str, key: str, values: Any) -> list[Any]:
    if not isinstance(values, (list, tuple, set, frozenset)):
        raise InvalidRequest(f"filter[{shown(key)}]: {name} takes a list of values, not {shown(values)}")
    return [_value(value) for value in values]


def _text(name: str, key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"filter[{shown(key)}]: {name} takes a str, not {shown(value)}")
    return value


def _eq(key: str, value: Any) -> Filter:
    if value is None:
        return {"$or": [{key: None}, {key: {"$exists": False}}]}
    return {key: {"$eq": _value(value)}}


def _ne(key: str, value: Any) -> Filter:
    if value is None:
        return {key: {"$exists": True, "$ne": None}}
    return {key: {"$ne": _value(value)}}


def _in(key: str, values: Any) -> Filter:
    wanted = _list("$in", key, values)
    if None in wanted:
        return {"$or": [{key: {"$in": wanted}}, {key: {"$exists": False}}]}
    return {key: {"$in": wanted}}


def _nin(key: str, values: Any) -> Filter:
    unwanted = _list("$nin", key, values)
    if None in unwanted:
        return {key: {"$exists": True, "$nin": unwanted}}
    return {key: {"$nin": unwanted}}


def _between(key: str, bounds: Any) -> Filter:
    ends = _list("$between", key, bounds)
    if len(ends) != 2:
        raise InvalidRequest(
            f"filter[{shown(key)}]: $between takes two values, the least and the most, not {shown(bounds)}"
        )
    return {key: {"$gte": ends[0], "$lte": ends[1]}}


def _begins_with(key: str, prefix: str) -> Filter:
    """Strings are ordered by code points, so that those with a prefix are a range."""
    condition: Filter = {"$gte": prefix}
    rest = prefix.rstrip("\U0010ffff")
    if rest:
        after = ord(rest[-1]) + 1
        condition["$lt"] = rest[:-1] + chr(0xE000 if after == 0xD800 else after)  # no string holds half a surrogate
    return {key: condition}


def _like(key: str, pattern: Any) -> Filter:
    text, wild_start, wild_end = _pattern("$like", key, pattern)
    if wild_start and wild_end:
        return {key: {"$contains": text, **_OF_A_STRING}}
    if wild_end:
        return _begins_with(key, text)
    if wild_start:
        raise InvalidRequest(f"filter[{shown(key)}]: $like {shown(pattern)}: Kalos cannot look for how a string ends")
    return {key: {"$eq": text}}


def _ilike(key: str, pattern: Any) -> Filter:
    text, wild_start, wild_end = _pattern("$ilike", key, pattern)
    if wild_start and wild_end:
        return {key: {"$icontains": text, **_OF_A_STRING}}
    raise InvalidRequest(
        f"filter[{shown(key)}]: $ilike {shown(pattern)}: without regard to case Kalos knows only '%text%'"
    )


def _pattern(name: str, key: str, pattern: Any) -> tuple[str, bool, bool]:
    """A LIKE pattern as its text and whether a % stands before and after it. A backslash takes away a meaning."""
    parts: list[str] = []
    wild: list[int] = []  # before which characters of the text a % stands
    characters = iter(_text(name, key, pattern))
    for character in characters:
        if character == "_":
            raise InvalidRequest(
                f"filter[{shown(key)}]: {name} {shown(pattern)}: Kalos has no _ for any one character; "
                "write \\_ if it is meant"
            )
        if character == "%":
            wild.append(len(parts))
            continue
        parts.append(next(characters, "\\") if character == "\\" else character)
    if any(0 < place < len(parts) for place in wild):
        raise InvalidRequest(
            f"filter[{shown(key)}]: {name} {shown(pattern)}: Kalos knows % at the start and the end only"
        )
    if not parts:
        return "", bool(wild), bool(wild)
    return "".join(parts), 0 in wild, len(parts) in wild


def _plain(name: str) -> Callable[[str, Any], Filter]:
    return lambda key, value: {key: {name: _value(value)}}


_OPERATORS: dict[str, Callable[[str, Any], Filter]] = {
    "$eq": _eq,
    "$ne": _ne,
    "$in": _in,
    "$nin": _nin,
    **{name: _plain(name) for name in ("$gt", "$gte", "$lt", "$lte", "$exists", "$contains", "$icontains", "$subset")},
    "$between": _between,
    "$not_contains": lambda key, value: _none([{key: {"$contains": _value(value)}}]),
    "$like": _like,
    "$ilike": _ilike,
}


def _operators(key: str, operators: Mapping[Any, Any], known: Mapping[str, Callable[[str, Any], Filter]]) -> Filter:
    filters = []
    for name, operand in operators.items():
        if name == "$not":
            if not isinstance(operand, Mapping) or not _are_operators(operand):
                raise InvalidRequest(f"filter[{shown(key)}]: $not takes a dict of operators, not {shown(operand)}")
            filters.append(_none([_operators(key, operand, known)]))
        elif name in known:
            filters.append(known[name](key, operand))
        else:
            raise InvalidRequest(
                f"filter[{shown(key)}]: unknown operator {shown(name)}; known are {', '.join(known)}, $not"
            )
    return _all(filters)


def _are_operators(value: Mapping[Any, Any]) -> bool:
    return any(isinstance(name, str) and name.startswith("$") for name in value)


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise InvalidRequest(f"filter: keys are str, not {shown(key)}")
    if key.startswith("$"):
        raise InvalidRequest(f"filter: {shown(key)} stands where a metadata key is expected; a key cannot begin with $")
    return key


def _filters(name: str, value: object) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise InvalidRequest(f"filter: {name} takes a list of filters, not {shown(value)}")
    return list(value)


# ---------------------------------------------------------------------------------------------- LangChain ------------

_PLAIN_NAMES = {name.removeprefix("$"): name for name in (*_OPERATORS, "$not")}


def from_langchain(filter: Any) -> Filter:
    """A dict as Chroma, Pinecone and PGVector take it, or a structured query.

    Equality is exact: {"tags": "x"} does not match ["x", "y"], for which there is $contains. A dict below a key whose
    names are all operators without their "$" is taken for operators; say {"$eq": {...}} to compare with such an object.
    """
    if filter is None:
        return {}
    if not isinstance(filter, Mapping):
        return from_structured_query(filter)
    filters = []
    for key, value in filter.items():
        if key in ("$and", "$or") or (key in ("and", "or") and _are_filters(value)):
            parts = [from_langchain(_mapping(part)) for part in _filters(key, value)]
            filters.append(_all(parts) if key.endswith("and") else _any(parts))
        elif key == "$not" or (key == "not" and isinstance(value, Mapping)):
            filters.append(_none([from_langchain(_mapping(value))]))
        else:
            filters.append(_langchain_condition(_key(key), value))
    return _all(filters)


def _mapping(value: object) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"filter: a filter is a dict, not {shown(value)}")
    return value


def _are_filters(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(part, Mapping) for part in value)


def _langchain_condition(key: str, value: Any) -> Filter:
    if isinstance(value, Mapping):
        value = _with_dollars(value)
        if _are_operators(value):
            return _operators(key, value, _OPERATORS)
    return _eq(key, value)


def _with_dollars(condition: Mapping[Any, Any]) -> Mapping[Any, Any]:
    if condition and all(name in _PLAIN_NAMES for name in condition):
        condition = {_PLAIN_NAMES[name]: operand for name, operand in condition.items()}
    inner = condition.get("$not")
    return {**condition, "$not": _with_dollars(inner)} if isinstance(inner, Mapping) else condition


# ---- structured_query ----


def _contains_text(key: str, value: Any) -> Filter:
    """What a language model writes for `like` has no contract: text, perhaps with a % at its ends."""
    return {key: {"$contains": _text("like", key, value).strip("%"), **_OF_A_STRING}}


_COMPARATORS: dict[str, Callable[[str, Any], Filter]] = {
    **{name: _OPERATORS["$" + name] for name in ("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin")},
    "contain": _OPERATORS["$contains"],
    "like": _contains_text,
}


def from_structured_query(expression: Any) -> Filter:
    """A StructuredQuery, Operation or Comparison of langchain_core.structured_query.

    Dates are compared as the text that they are written in, which for ISO 8601 is their order. `not` of several
    arguments holds where none of them does. The query's text and limit are the caller's business.
    """
    if expression is None:
        return {}
    if hasattr(expression, "comparator"):
        name = _name(expression.comparator)
        if name not in _COMPARATORS:
            raise InvalidRequest(f"filter: unknown comparator {shown(name)}; known are {', '.join(_COMPARATORS)}")
        return _COMPARATORS[name](_key(expression.attribute), _dates(expression.value))
    if hasattr(expression, "arguments"):
        parts = [from_structured_query(part) for part in expression.arguments]
        name = _name(expression.operator)
        if name not in ("and", "or", "not"):
            raise InvalidRequest(f"filter: unknown operator {shown(name)}; known are and, or, not")
        return _all(parts) if name == "and" else _any(parts) if name == "or" else _none(parts)
    if hasattr(expression, "filter"):
        return from_structured_query(expression.filter)
    raise InvalidRequest(
        f"filter must be a dict, or a StructuredQuery, Operation or Comparison, not a {type(expression).__name__}"
    )


def _name(operator: Any) -> Any:
    """Of an enum's member its value."""
    return getattr(operator, "value", operator)


def _dates(value: Any) -> Any:
    """The query parser's {"date": "2024-05-01", "type": "date"}, and the same with "datetime"."""
    if isinstance(value, Mapping) and value.get("type") in ("date", "datetime") and value["type"] in value:
        return value[value["type"]]
    return [_dates(item) for item in value] if isinstance(value, (list, tuple)) else value


# ---------------------------------------------------------------------------------------------- LangGraph ------------


def from_langgraph(filter: Any) -> Filter:
    """The filter of a store's search. $and, $or and $not, which match nothing in LangGraph's own store, are meant."""
    if filter is None:
        return {}
    filters = []
    for key, value in _mapping(filter).items():
        if key in ("$and", "$or"):
            parts = [from_langgraph(part) for part in _filters(key, value)]
            filters.append(_all(parts) if key == "$and" else _any(parts))
        elif key == "$not":
            filters.append(_none([from_langgraph(value)]))
        else:
            filters.append(_langgraph_value(_key(key), value))
    return _all(filters)


def _langgraph_value(path: str, value: Any) -> Filter:
    if isinstance(value, Mapping):
        if _are_operators(value):
            return _operators(path, value, _OPERATORS)
        if _is_plain(value):
            return {path: {"$subset": _value(value)}}
        # A member that may be missing, or has operators of its own: each is asked by its path.
        members = [_langgraph_value(f"{path}.{_member(path, key)}", member) for key, member in value.items()]
        return _all([{path: {"$subset": {}}}, *members])
    if isinstance(value, (list, tuple)) and not _is_plain(value):
        raise InvalidRequest(
            f"filter[{shown(path)}]: a list that holds objects would match lists of larger objects, which Kalos cannot "
            'look for; {"$eq": [...]} looks for exactly this list'
        )
    return _eq(path, value)


def _is_plain(value: Any) -> bool:
    """Do LangGraph's rules say the same of it as $subset and $eq do?"""
    if isinstance(value, Mapping):
        return not _are_operators(value) and all(member is not None and _is_plain(member) for member in value.values())
    return not isinstance(value, (list, tuple)) or not any(
        isinstance(item, Mapping) or not _is_plain(item) for item in value
    )


def _member(path: str, key: object) -> str:
    if not isinstance(key, str) or "." in key:
        raise InvalidRequest(
            f"filter[{shown(path)}]: the key {shown(key)} within an object cannot be looked for by a path"
        )
    return key


# ---------------------------------------------------------------------------------------------- LlamaIndex -----------


def _each_contained(name: str, join: Callable[[list[Filter]], Filter]) -> Callable[[str, Any], Filter]:
    def translate(key: str, values: Any) -> Filter:
        # A list, so that the same key may stand in it several times.
        parts = [{key: {"$contains": value}} for value in _list(name, key, values)]
        if parts:
            return join(parts)
        return NOTHING if name == "any" else {key: {"$exists": True, "$ne": None}}

    return translate


def _found(name: str) -> Callable[[str, Any], Filter]:
    return lambda key, value: {key: {name: _text("text_match", key, value), **_OF_A_STRING}}


# What LlamaIndex's own SimpleVectorStore says: what is missing or None matches !=, nin and is_empty alone.
_LLAMA_INDEX: dict[str, Callable[[str, Any], Filter]] = {
    "==": lambda key, value: NOTHING if value is None else {key: {"$eq": _value(value)}},
    "!=": lambda key, value: {} if value is None else {key: {"$ne": _value(value)}},
    ">": _plain("$gt"),
    ">=": _plain("$gte"),
    "<": _plain("$lt"),
    "<=": _plain("$lte"),
    "in": lambda key, values: {key: {"$in": _list("in", key, values)}},
    "nin": lambda key, values: {key: {"$nin": _list("nin", key, values)}},
    "any": _each_contained("any", _any),
    "all": _each_contained("all", _all),
    "contains": _plain("$contains"),
    "text_match": _found("$contains"),
    "text_match_insensitive": _found("$icontains"),
    "is_empty": lambda key, _: {"$or": [{key: {"$exists": False}}, {key: {"$in": [None, "", []]}}]},
}


def from_llama_index(filters: Any) -> Filter:
    """MetadataFilters, nested at will, or one MetadataFilter. No filters match everything, under any condition."""
    if filters is None:
        return {}
    if hasattr(filters, "filters"):
        parts = [from_llama_index(part) for part in filters.filters]
        condition = _name(filters.condition) or "and"
        if condition not in ("and", "or", "not"):
            raise InvalidRequest(f"filter: unknown condition {shown(condition)}; known are and, or, not")
        if not parts:
            return {}
        return _all(parts) if condition == "and" else _any(parts) if condition == "or" else _none(parts)
    if not hasattr(filters, "operator"):
        raise InvalidRequest(f"filter must be MetadataFilters or a MetadataFilter, not a {type(filters).__name__}")
    name = _name(filters.operator)
    if name not in _LLAMA_INDEX:
        raise InvalidRequest(f"filter: unknown operator {shown(name)}; known are {', '.join(_LLAMA_INDEX)}")
    return _LLAMA_INDEX[name](_key(filters.key), filters.value)
