"""Filters of other frameworks, operator by operator: a translated filter matches the rows that the framework's own
rules match. The rules stand here as plain Python, and where a framework is installed its own code is asked too. What a
Kalos filter matches is asked of tests/oracle.py, which kalosd is held to elsewhere."""

import itertools
from types import SimpleNamespace

import oracle
import pytest

from kalos_memory import InvalidRequest
from kalos_memory._filter_translation import from_langchain, from_langgraph, from_llama_index, from_structured_query
from kalos_memory._filters import encode_filter

VALUES = [
    *(None, True, False, 0, 1, 1.0, 2, 2.5, -3, 9007199254740993),
    *("", "a", "A", "ab", "abc", "b", "1", "Straße", "100%", "snake_case", "\ud7ff", "\U0010ffff"),
    *([], ["a"], ["a", "b"], [1, 2], [1.0, "a"], ["ab"], [None], [["a"]], [{"a": 1}], [{"a": 1, "b": 2}]),
    *({}, {"a": 1}, {"a": 1, "b": 2}, {"a": None}, {"a": {"b": 1}}, {"a": {"b": 1, "c": "x"}}, {"b": 1}, {"a": [1]}),
]
MISSING = object()
ROWS = [{"other": 1}, *({"k": value} for value in VALUES)]
ROWS += [{"k": a, "l": b} for a, b in itertools.product([None, 1, 2, "a"], [1, "b", None])]


def matches(filter, row):
    encode_filter(filter)  # is a filter that the client takes
    return oracle.matches(filter, row)


def check(filter, rule):
    """The filter and the rule agree on every row."""
    for row in ROWS:
        assert matches(filter, row) == rule(row), (filter, row)


def of_k(rule):
    return lambda row: rule(row.get("k", MISSING))


def number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def compared(value, operand, test):
    """What a range means everywhere: numbers with numbers, strings with strings, and nothing else."""
    both = (number(value) and number(operand)) or (isinstance(value, str) and isinstance(operand, str))
    return both and test(value, operand)


RANGES = {
    "gt": lambda a, b: a > b,
    "gte": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "lte": lambda a, b: a <= b,
}


def absent(value):
    return value is MISSING or value is None


def equal(value, operand):
    return absent(value) if operand is None else oracle.equal(value, operand)


def contains(value, operand):
    if isinstance(value, str):
        return isinstance(operand, str) and operand in value
    return isinstance(value, list) and any(oracle.equal(item, operand) for item in value)


# ---------------------------------------------------------------------------------------------- LangChain ------------


@pytest.fixture(params=["$", ""], ids=["dollar", "plain"])
def spelled(request):
    """Both spellings of an operator's name."""
    return lambda name: request.param + name


@pytest.mark.parametrize("operand", [None, True, 1, 1.0, "a", "1", ["a"], (1, 2), {"a": 1}, {}])
def test_langchain_equality_is_exact_and_none_is_also_what_is_missing(spelled, operand):
    wanted = list(operand) if isinstance(operand, tuple) else operand
    check(from_langchain({"k": {spelled("eq"): operand}}), of_k(lambda value: equal(value, wanted)))
    check(from_langchain({"k": {spelled("ne"): operand}}), of_k(lambda value: not equal(value, wanted)))
    check(from_langchain({"k": operand}), of_k(lambda value: equal(value, wanted)))


@pytest.mark.parametrize("operand", [0, 1, 2.5, "a", "", "b", None, True, [1]])
@pytest.mark.parametrize("name", RANGES)
def test_langchain_ranges(spelled, name, operand):
    check(from_langchain({"k": {spelled(name): operand}}), of_k(lambda value: compared(value, operand, RANGES[name])))


@pytest.mark.parametrize("operand", [[], ["a", 1], [None], [None, "b"], ("a",), {"a"}, list(range(20))])
def test_langchain_lists_of_values(spelled, operand):
    wanted = list(operand)
    check(from_langchain({"k": {spelled("in"): operand}}), of_k(lambda value: any(equal(value, one) for one in wanted)))
    check(
        from_langchain({"k": {spelled("nin"): operand}}),
        of_k(lambda value: not any(equal(value, one) for one in wanted)),
    )


def test_langchain_other_operators(spelled):
    check(from_langchain({"k": {spelled("exists"): True}}), of_k(lambda value: value is not MISSING))
    check(from_langchain({"k": {spelled("exists"): False}}), of_k(lambda value: value is MISSING))
    for operand in ("a", "", 1, None, ["a"]):
        check(from_langchain({"k": {spelled("contains"): operand}}), of_k(lambda value, o=operand: contains(value, o)))
        check(
            from_langchain({"k": {spelled("not_contains"): operand}}),
            of_k(lambda value, o=operand: not contains(value, o)),
        )
    check(
        from_langchain({"k": {spelled("between"): [1, 2.5]}}), of_k(lambda value: number(value) and 1 <= value <= 2.5)
    )
    check(from_langchain({"k": {spelled("icontains"): "ABC"}}), of_k(lambda value: value == "abc"))
    check(
        from_langchain({"k": {spelled("subset"): {"a": 1}}}),
        of_k(lambda value: isinstance(value, dict) and number(value.get("a")) and value["a"] == 1),
    )


@pytest.mark.parametrize(
    ("pattern", "rule"),
    [
        ("abc", lambda text: text == "abc"),
        ("a%", lambda text: text.startswith("a")),
        ("\ud7ff%", lambda text: text.startswith("\ud7ff")),
        ("\U0010ffff%", lambda text: text.startswith("\U0010ffff")),
        ("%", lambda text: True),
        ("%b%", lambda text: "b" in text),
        ("%%", lambda text: True),
        ("100\\%", lambda text: text == "100%"),
        ("%\\%%", lambda text: "%" in text),
        ("snake\\_case", lambda text: text == "snake_case"),
        ("", lambda text: text == ""),
    ],
)
def test_langchain_like_is_that_of_sql(spelled, pattern, rule):
    check(from_langchain({"k": {spelled("like"): pattern}}), of_k(lambda value: isinstance(value, str) and rule(value)))


def test_langchain_ilike_knows_what_icontains_can_say(spelled):
    check(
        from_langchain({"k": {spelled("ilike"): "%AB%"}}),
        of_k(lambda value: isinstance(value, str) and "ab" in value.lower()),
    )


def test_langchain_logic_in_both_spellings(spelled):
    one, two = {"k": 1}, {"l": {spelled("gt"): 0}}
    first = lambda row: equal(row.get("k", MISSING), 1)  # noqa: E731
    second = lambda row: compared(row.get("l"), 0, RANGES["gt"])  # noqa: E731
    check(from_langchain({**one, **two}), lambda row: first(row) and second(row))
    check(from_langchain({spelled("and"): [one, two]}), lambda row: first(row) and second(row))
    check(from_langchain({spelled("or"): [one, two]}), lambda row: first(row) or second(row))
    check(from_langchain({spelled("not"): one}), lambda row: not first(row))
    check(
        from_langchain({spelled("or"): [{spelled("and"): [one, two]}, {spelled("not"): {spelled("or"): [one, two]}}]}),
        lambda row: first(row) == second(row),
    )
    check(
        from_langchain({"k": {spelled("not"): {spelled("not"): {spelled("gt"): 1}}}}),
        of_k(lambda value: compared(value, 1, RANGES["gt"])),
    )
    check(
        from_langchain({"k": {spelled("gte"): 1, spelled("lt"): 2}}),
        of_k(lambda value: number(value) and 1 <= value < 2),
    )
    check(from_langchain({spelled("or"): []}), lambda row: False)
    check(from_langchain({spelled("and"): []}), lambda row: True)


def test_no_filter_matches_everything():
    for translated in (from_langchain(None), from_langchain({}), from_langgraph(None), from_langgraph({})):
        assert translated == {}
    assert from_llama_index(None) == {}
    assert from_structured_query(None) == {}


@pytest.mark.parametrize(
    ("filter", "words"),
    [
        ({"k": {"$regex": "a"}}, "unknown operator.*known are"),
        ({"k": {"$gt": 1, "plain": 2}}, "unknown operator"),
        ({"$nor": []}, "begin with"),
        ({1: 2}, "keys are str"),
        ({"$and": {"k": 1}}, "list of filters"),
        ({"$or": [1]}, "a filter is a dict"),
        ({"$not": [1]}, "a filter is a dict"),
        ({"k": {"$in": "abc"}}, "list of values"),
        ({"k": {"$nin": 3}}, "list of values"),
        ({"k": {"$not": 3}}, "dict of operators"),
        ({"k": {"$between": [1]}}, "two values"),
        ({"k": {"$like": "%end"}}, "ends"),
        ({"k": {"$like": "a%b"}}, "start and the end"),
        ({"k": {"$like": "a_b"}}, "one character"),
        ({"k": {"$like": 1}}, "takes a str"),
        ({"k": {"$ilike": "ab%"}}, "without regard to case"),
        (lambda document: True, "must be a dict"),
        ("k = 1", "must be a dict"),
    ],
)
def test_what_cannot_be_said_is_refused_in_words(filter, words):
    with pytest.raises(InvalidRequest, match=words):
        from_langchain(filter)


# ---------------------------------------------------------------------------------------------- structured queries ---


def comparison(comparator, value, attribute="k"):
    return SimpleNamespace(comparator=comparator, attribute=attribute, value=value)


def operation(operator, *arguments):
    return SimpleNamespace(operator=operator, arguments=list(arguments))


def test_comparisons_of_a_structured_query():
    for name, test in RANGES.items():
        for operand in (1, "a"):
            check(
                from_structured_query(comparison(name, operand)),
                of_k(lambda value, t=test, o=operand: compared(value, o, t)),
            )
    for operand in (1, "a", None):
        check(from_structured_query(comparison("eq", operand)), of_k(lambda value, o=operand: equal(value, o)))
        check(from_structured_query(comparison("ne", operand)), of_k(lambda value, o=operand: not equal(value, o)))
    check(from_structured_query(comparison("in", ["a", 2])), of_k(lambda value: any(equal(value, o) for o in ("a", 2))))
    check(
        from_structured_query(comparison("nin", ["a", 2])),
        of_k(lambda value: not any(equal(value, o) for o in ("a", 2))),
    )
    check(from_structured_query(comparison("contain", "a")), of_k(lambda value: contains(value, "a")))
    for pattern in ("b", "%b%", "b%"):
        check(
            from_structured_query(comparison("like", pattern)),
            of_k(lambda value: isinstance(value, str) and "b" in value),
        )


def test_operations_of_a_structured_query():
    one, two = comparison("eq", 1), comparison("eq", "b", "l")
    first = lambda row: equal(row.get("k", MISSING), 1)  # noqa: E731
    second = lambda row: equal(row.get("l", MISSING), "b")  # noqa: E731
    check(from_structured_query(operation("and", one, two)), lambda row: first(row) and second(row))
    check(from_structured_query(operation("or", one, two)), lambda row: first(row) or second(row))
    check(from_structured_query(operation("not", one)), lambda row: not first(row))
    check(from_structured_query(operation("not", one, two)), lambda row: not (first(row) or second(row)))
    whole = SimpleNamespace(query="x", filter=operation("and", one, operation("not", two)), limit=3)
    check(from_langchain(whole), lambda row: first(row) and not second(row))
    assert from_structured_query(SimpleNamespace(query="x", filter=None, limit=None)) == {}


def test_dates_of_a_structured_query_are_compared_as_iso_text():
    filter = from_structured_query(comparison("gte", {"date": "2024-05-01", "type": "date"}))
    assert matches(filter, {"k": "2024-05-02"})
    assert not matches(filter, {"k": "2024-04-30"})
    filter = from_structured_query(comparison("lt", {"datetime": "2024-05-01T10:00:00", "type": "datetime"}))
    assert matches(filter, {"k": "2024-05-01T09:59:59"})
    assert not matches(filter, {"k": 5})


def test_structured_queries_of_langchain_itself():
    """The real classes have the attributes that the translation goes by."""
    core = pytest.importorskip("langchain_core.structured_query")
    comparators = list(core.Comparator)
    assert {one.value for one in comparators} == {"eq", "ne", *RANGES, "contain", "like", "in", "nin"}
    for comparator in comparators:
        operand = ["a", "b"] if comparator.value in ("in", "nin") else "a"
        expected = from_structured_query(comparison(comparator.value, operand))
        assert expected == from_structured_query(core.Comparison(comparator=comparator, attribute="k", value=operand))
    one = core.Comparison(comparator=core.Comparator.EQ, attribute="k", value=1)
    for operator in core.Operator:
        query = core.StructuredQuery(query="", filter=core.Operation(operator=operator, arguments=[one]))
        assert from_langchain(query) == from_structured_query(operation(operator.value, comparison("eq", 1)))


def test_unknown_parts_of_a_structured_query_are_refused():
    with pytest.raises(InvalidRequest, match="unknown comparator"):
        from_structured_query(comparison("near", 1))
    with pytest.raises(InvalidRequest, match="unknown operator"):
        from_structured_query(operation("xor", comparison("eq", 1)))
    with pytest.raises(InvalidRequest, match="Comparison"):
        from_structured_query(3)


# ---------------------------------------------------------------------------------------------- LangGraph ------------


def langgraph_compare(value, wanted):
    """`_compare_values` of langgraph.store.memory, but that ranges of other types do not raise and True is not 1."""
    if isinstance(wanted, dict):
        if any(key.startswith("$") for key in wanted):
            return all(langgraph_operator(value, name, operand) for name, operand in wanted.items())
        return isinstance(value, dict) and all(langgraph_compare(value.get(key), part) for key, part in wanted.items())
    if isinstance(wanted, (list, tuple)):
        return (
            isinstance(value, list)
            and len(value) == len(wanted)
            and all(langgraph_compare(one, part) for one, part in zip(value, wanted, strict=True))
        )
    return oracle.equal(value, wanted)


def langgraph_operator(value, name, operand):
    if name == "$eq":
        return oracle.equal(value, operand)
    if name == "$ne":
        return not oracle.equal(value, operand)
    return compared(value, operand, RANGES[name[1:]])


@pytest.mark.parametrize(
    "condition",
    [
        *(None, True, 1, 1.0, "a", [], ["a"], (1, 2), ["a", "b"], [["a"]], [None]),
        *({}, {"a": 1}, {"a": {"b": 1}}, {"a": None}, {"a": {"b": None}}, {"a": {"c": {"$ne": "x"}}}, {"a": [1]}),
        *({"a": {"$gte": 1}}, {"a": {"b": {"$lt": 2}}, "b": None}),
        *({"$eq": 1}, {"$eq": None}, {"$ne": None}, {"$ne": 1}, {"$eq": {"a": 1}}, {"$eq": [{"a": 1}]}, {"$ne": ["a"]}),
        *({"$gt": 1}, {"$gte": 1, "$lt": 2.5}, {"$lte": "b"}, {"$lt": None}),
    ],
)
def test_langgraph_conditions(condition):
    check(from_langgraph({"k": condition}), lambda row: langgraph_compare(row.get("k"), condition))


def test_langgraph_keys_are_joined_and_logic_does_what_it_says():
    check(from_langgraph({"k": 1, "l": "b"}), lambda row: row.get("k") == 1 and row.get("l") == "b")
    check(from_langgraph({"$or": [{"k": 2}, {"l": "b"}]}), lambda row: row.get("k") == 2 or row.get("l") == "b")
    check(
        from_langgraph({"$and": [{"k": 2}, {"$not": {"l": "b"}}]}),
        lambda row: row.get("k") == 2 and row.get("l") != "b",
    )
    check(from_langgraph({"k": {"$in": ["a", 2]}}), of_k(lambda value: value == "a" or (number(value) and value == 2)))


def test_langgraph_what_cannot_be_said_is_refused():
    for filter, words in [
        ({"k": [{"a": 1}]}, "exactly this list"),
        ({"k": {"a": [{"b": 1}]}}, "exactly this list"),
        ({"k": {"a.b": None}}, "path"),
        ({"k": {"$regex": "x"}}, "unknown operator"),
        ({"k": {"$gt": 1, "a": 2}}, "unknown operator"),
        ({"$or": {"k": 1}}, "list of filters"),
        ([("k", 1)], "a filter is a dict"),
    ]:
        with pytest.raises(InvalidRequest, match=words):
            from_langgraph(filter)


# ---------------------------------------------------------------------------------------------- LlamaIndex -----------


def leaf(operator, value, key="k"):
    return SimpleNamespace(key=key, value=value, operator=operator)


def group(condition, *filters):
    return SimpleNamespace(filters=list(filters), condition=condition)


def llama_rule(operator, wanted):
    """`_process_filter_match` of llama_index.core, where what raises there does not match, and True is not 1."""

    def rule(value):
        if operator == "is_empty":
            return absent(value) or value in ("", [])
        if absent(value):
            return operator in ("!=", "nin")
        if operator in ("==", "!="):
            return (wanted is not None and oracle.equal(value, wanted)) == (operator == "==")
        if operator in (">", ">=", "<", "<="):
            return compared(value, wanted, RANGES[{">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}[operator]])
        if operator in ("in", "nin"):
            return any(oracle.equal(value, one) for one in wanted) == (operator == "in")
        if operator in ("any", "all"):
            each = [contains(value, one) for one in wanted]
            return any(each) if operator == "any" else all(each)
        if operator == "contains":
            return contains(value, wanted)
        text = isinstance(value, str)
        return text and (wanted in value if operator == "text_match" else wanted.lower() in value.lower())

    return rule


LLAMA_CASES = [
    *(("==", one) for one in (1, 2.5, "a", "", None, ["a"])),
    *(("!=", one) for one in (1, "a", None, ["a", "b"])),
    *((operator, one) for operator in (">", ">=", "<", "<=") for one in (1, 2.5, "a")),
    *((operator, one) for operator in ("in", "nin") for one in (["a", "b"], [1, 2], [])),
    *((operator, one) for operator in ("any", "all") for one in (["a", "b"], ["a"], [1], ["ab"], [])),
    *(("contains", one) for one in ("a", 1, 1.0)),
    *(("text_match", one) for one in ("a", "b", "")),
    *(("text_match_insensitive", one) for one in ("A", "aBC", "")),
    ("is_empty", None),
]


@pytest.mark.parametrize(("operator", "value"), LLAMA_CASES)
def test_llama_index_operators(operator, value):
    rule = llama_rule(operator, value)
    check(from_llama_index(leaf(operator, value)), of_k(rule))
    check(from_llama_index(group("not", leaf(operator, value))), of_k(lambda found: not rule(found)))


def test_llama_index_conditions_nest():
    one, two, three = leaf("==", 1), leaf("is_empty", None, "l"), leaf("any", ["a", "b"])
    first = lambda row: oracle.equal(row.get("k"), 1)  # noqa: E731
    second = lambda row: row.get("l") is None  # noqa: E731
    third = lambda row: contains(row.get("k"), "a") or contains(row.get("k"), "b")  # noqa: E731
    check(from_llama_index(group("and", one, two)), lambda row: first(row) and second(row))
    check(from_llama_index(group(None, one, two)), lambda row: first(row) and second(row))
    check(from_llama_index(group("or", one, two, three)), lambda row: first(row) or second(row) or third(row))
    check(from_llama_index(group("not", one, three)), lambda row: not (first(row) or third(row)))
    check(
        from_llama_index(group("or", group("and", one, group("not", two)), group("and", three, two))),
        lambda row: (first(row) and not second(row)) or (third(row) and second(row)),
    )
    for condition in ("and", "or", "not", None):
        check(from_llama_index(group(condition)), lambda row: True)


def test_llama_index_what_cannot_be_said_is_refused():
    for filters, words in [
        (leaf("near", 1), "unknown operator"),
        (group("xor", leaf("==", 1)), "unknown condition"),
        (leaf("in", "abc"), "list of values"),
        (leaf("any", "abc"), "list of values"),
        (leaf("text_match", 1), "takes a str"),
        (leaf("==", 1, "$k"), "begin with"),
        ({"k": 1}, "MetadataFilters"),
    ]:
        with pytest.raises(InvalidRequest, match=words):
            from_llama_index(filters)


def test_llama_index_itself_agrees():
    """SimpleVectorStore's own function, over the real classes, wherever it answers at all."""
    types = pytest.importorskip("llama_index.core.vector_stores.types")
    utils = pytest.importorskip("llama_index.core.vector_stores.utils")
    assert {one.value for one in types.FilterOperator} == {operator for operator, _ in LLAMA_CASES}
    asked = 0
    for operator, value in LLAMA_CASES:
        one = types.MetadataFilter(key="k", value=value, operator=operator)
        for condition in types.FilterCondition:
            filters = types.MetadataFilters(filters=[one], condition=condition)
            for row in ROWS:
                try:
                    expected = utils.build_metadata_filter_fn(lambda _, row=row: row, filters)("")
                except TypeError:
                    continue  # values that do not compare: no match here
                if isinstance(row.get("k"), (bool, dict)):
                    continue  # True is 1 there, and `in` asks for the keys of an object
                asked += 1
                assert matches(from_llama_index(filters), row) == expected, (operator, value, condition, row)
    assert asked > 2000
