"""Whatever the arguments, an error that names the field, and the server lives.

Generated from what `tools/list` says, for every tool in it, over HTTP in both generations.
"""

from __future__ import annotations

import contextlib
import json

import pytest

from oubliette.tools.registry import TABLE
from oubliette.tools.spec import CALLERS
from tests.callers import HttpError, ToolFailed

pytestmark = pytest.mark.anyio

SETTINGS = {"callers.calls_per_second": 100_000, "callers.calls_burst": 10_000}
TOOLS = sorted(TABLE)
MEGABYTE = "x" * 1_000_000
WRONG = {
    "string": [5, 1.5, True, [], {}, ["x"]],
    "integer": ["5", "x", 1.5, True, [], {}],
    "number": ["1.5", True, [], {}],
    "boolean": [0, 1, "true", [], {}],
    "object": [5, "x", True, [], [{}]],
    "array": [5, "x", True, {}],
}
"""Values of other types, for each type of JSON Schema."""


BOTH = pytest.mark.parametrize("caller", ["http-auto", "http-legacy"], indirect=True)
"""For what the two generations might take in differently; what comes after that is one door."""


@pytest.fixture(scope="module")
async def callers(shared_site):
    """Somebody who may call everything, in both generations, and the schemas that each is told."""
    async with contextlib.AsyncExitStack() as stack:
        made = {}
        for kind in ("http-auto", "http-legacy"):
            caller = shared_site.caller(kind, token=shared_site.principal("admin"))
            await stack.enter_async_context(caller)
            listed = await caller.ask("tools/list", {})
            made[kind] = caller, {tool["name"]: tool["inputSchema"] for tool in listed["tools"]}
        yield made


@pytest.fixture
def caller(request, callers):
    return callers[getattr(request, "param", "http-auto")][0]


@pytest.fixture
def schemas(caller, callers):
    return next(schemas for each, schemas in callers.values() if each is caller)


def plain(schema):
    """The schema of a parameter without `null`, and whether null may be given."""
    kinds = schema.get("anyOf", [schema])
    real = [kind for kind in kinds if kind.get("type") != "null"]
    return (real[0] if len(real) == 1 else {}), len(real) < len(kinds)


def sample(schema):
    """A value of the right type, whatever it means."""
    kinds = [kind for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null"]
    schema = kinds[0] if kinds else {}
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "string":
            return "x" * max(1, schema.get("minLength", 1))
        case "integer" | "number":
            return max(1, schema.get("minimum", 1))
        case "boolean":
            return False
        case "array":
            return [sample(schema.get("items", {})) for _ in range(schema.get("minItems", 0))]
        case "object":
            return required(schema)
        case _:
            return None


def required(schema):
    return {name: sample(schema["properties"][name]) for name in schema.get("required", [])}


def parameters(schema, path=()):
    """Every parameter at every depth: how to put a value there, its name, its schema."""
    for name, inner in schema.get("properties", {}).items():
        here = (*path, name)
        yield here, inner
        kind, _ = plain(inner)
        if kind.get("type") == "object":
            yield from parameters(kind, here)
        elif kind.get("type") == "array":
            yield from parameters(plain(kind.get("items", {}))[0], (*here, 0))


def put(schema, path, value):
    """Arguments that are right but for the value at `path`."""
    arguments = required(schema)
    node, kind = arguments, schema
    for place, step in enumerate(path):
        last = place == len(path) - 1
        if step == 0:
            kind, _ = plain(kind.get("items", {}))
            node.append(required(kind))
            node = node[0]
            continue
        kind, _ = plain(kind["properties"][step])
        if last:
            node[step] = value
        else:
            node = node.setdefault(step, [] if kind.get("type") == "array" else required(kind))
    return arguments


def written(path) -> str:
    return "".join(f"[{step}]" if step == 0 else f".{step}" for step in path).lstrip(".")


async def refusal(caller, name, arguments) -> str:
    """The text with which the call is refused."""
    with pytest.raises(ToolFailed) as refused:
        await caller.ask_tool(name, arguments)
    return str(refused.value)


@pytest.fixture(autouse=True)
def ask_tool(caller):
    """tools/call with anything as `arguments`; an error of either kind is raised."""
    missing = object()

    async def ask_tool(name, arguments=missing):
        params = {"name": name}
        if arguments is not missing:
            params["arguments"] = arguments
        try:
            result = await caller.ask("tools/call", params)
        except HttpError as refused:  # what is no call at all: a JSON-RPC error, as status 400
            assert refused.status == 400, refused
            raise ToolFailed(json.loads(refused.body)["error"]["message"]) from None
        if result.get("isError"):
            raise ToolFailed(result["content"][0]["text"])
        return result

    caller.ask_tool = ask_tool
    return ask_tool


@pytest.fixture(autouse=True)
async def lives(site, caller):
    """After whatever was sent, the server answers, and has met no surprise of its own."""
    yield
    async with caller.http.request("GET", path="/health") as response:
        assert response.status == 200
    log = site.server.log()
    assert "tool failed" not in log
    assert "request failed" not in log
    assert "Traceback" not in log


@BOTH
async def test_every_tool_of_the_table_is_listed(schemas):
    """At the HTTP door, for an admin."""
    assert sorted(schemas) == sorted(
        name for name, tool in TABLE.items() if tool.transports >= CALLERS
    )
    for schema in schemas.values():
        assert schema["type"] == "object"
        assert schema["additionalProperties"] is False


@BOTH
@pytest.mark.parametrize("tool", TOOLS)
async def test_without_arguments(tool, schemas, caller):
    """A call without arguments, or with null: the first required one is named, if there is one."""
    wanted = schemas[tool].get("required", [])
    if tool == "caller_listen" or wanted:
        for arguments in ((), (None,), ({},)):
            with pytest.raises(ToolFailed) as refused:
                await caller.ask_tool(tool, *arguments)
            assert str(refused.value).startswith(f"{wanted[0]}: is required"), refused.value
    else:
        try:
            await caller.ask_tool(tool)
        except ToolFailed as refused:  # one of several is needed, which a schema cannot say
            assert "_id: is required" in str(refused) or "_id: either " in str(refused)


@BOTH
@pytest.mark.parametrize("tool", TOOLS)
async def test_arguments_that_are_no_object(tool, caller):
    """Wrong types of `arguments` itself."""
    for arguments in (5, "x", True, [], [{}]):
        text = await refusal(caller, tool, arguments)
        assert text == f"arguments: must be an object with the parameters of {tool}"


@pytest.mark.parametrize("tool", TOOLS)
async def test_unknown_parameters(tool, schemas, caller):
    """Every parameter not listed is refused by name, at every depth."""
    schema = schemas[tool]
    for name in ("colour", "__proto__", "", "Project_Id", "x" * 300, "ключ", "\u2028"):
        text = await refusal(caller, tool, {**required(schema), name: 1})
        assert "unknown parameter" in text
        assert name[:50] in text or ascii(name)[1:-1] in text or repr(name)[1:-1] in text
    for path, inner in parameters(schema):
        kind, _ = plain(inner)
        if kind.get("type") == "object" and kind.get("additionalProperties") is False:
            text = await refusal(caller, tool, put(schema, path, {**required(kind), "colour": 1}))
            assert "colour" in text
            assert "unknown parameter" in text


@pytest.mark.parametrize("tool", TOOLS)
async def test_wrong_types(tool, schemas, caller):
    """Each parameter with values of every other type, null among them."""
    schema = schemas[tool]
    for path, inner in parameters(schema):
        kind, nullable = plain(inner)
        wrong = list(WRONG.get(kind.get("type"), []))
        if wrong and not nullable:
            wrong.append(None)
        for value in wrong:
            text = await refusal(caller, tool, put(schema, path, value))
            assert text.startswith(f"{written(path)}: "), (path, value, text)


@pytest.mark.parametrize("tool", TOOLS)
async def test_values_out_of_range(tool, schemas, caller):
    """Numbers beyond their bounds, of any size, and strings that are none of an enumeration."""
    schema = schemas[tool]
    for path, inner in parameters(schema):
        kind, _ = plain(inner)
        wrong = []
        if kind.get("type") in {"integer", "number"}:
            wrong += [2**200, -(2**200)]
            wrong += [kind["minimum"] - 1] if "minimum" in kind else []
            wrong += [kind["maximum"] + 1] if "maximum" in kind else []
            wrong += [kind["exclusiveMinimum"]] if "exclusiveMinimum" in kind else []
        if "enum" in kind:
            wrong += ["none of these", "", MEGABYTE]
        for value in wrong:
            text = await refusal(caller, tool, put(schema, path, value))
            assert path[-1] in text or ("64 bits" in text and path[0] in text), (path, text)
            assert len(text) < 2000


@BOTH
@pytest.mark.parametrize("tool", TOOLS)
async def test_strings_of_a_megabyte(tool, schemas, caller):
    """Strings above their bound, or beside any sense: refused in a short sentence with the name."""
    schema = schemas[tool]
    for path, inner in parameters(schema):
        kind, _ = plain(inner)
        if kind.get("type") != "string" or kind.get("maxLength", 0) >= len(MEGABYTE):
            continue
        text = await refusal(caller, tool, put(schema, path, MEGABYTE))
        assert text.startswith(f"{written(path)}: "), (path, text[:200])
        assert len(text) < 2000


@pytest.mark.parametrize("tool", TOOLS)
async def test_strings_that_no_log_should_hold(tool, schemas, caller):
    """Line breaks, NUL, half surrogates: refused by name, or taken as any other text."""
    schema = schemas[tool]
    for path, inner in parameters(schema):
        kind, _ = plain(inner)
        if kind.get("type") != "string" or tool == "caller_listen":
            continue
        for value in ("a\x00b", "a\nb", "\ud800", "../../etc/passwd", "%s%n{0}", "' OR 1=1 --"):
            try:
                await caller.ask_tool(tool, put(schema, path, value))
            except ToolFailed as refused:
                assert len(str(refused)) < 2000
                assert "internal error" not in str(refused)


@BOTH
async def test_nesting_without_end_is_refused_by_name(caller):
    """Bounded depth, also where any JSON may stand."""
    deep = []
    for _ in range(100):
        deep = [deep]
    arguments = {"session_id": "gogol_" + "0" * 26, "request_id": "x", "result": deep}
    assert "'result': nested deeper" in await refusal(caller, "caller_tool_response", arguments)


@BOTH
@pytest.mark.parametrize("name", [None, 5, ["project_list"], {}])
async def test_a_call_of_no_name_says_so(caller, name):
    assert "name" in await refusal(caller, name, {})
