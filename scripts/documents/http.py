"""docs/reference/http.md: routes, fields and errors, from the OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.routing import Route

from edgeflow.config.service import ServiceConfig
from edgeflow.service.gateway import openapi
from edgeflow.service.gateway.gateway import build_app
from edgeflow.service.http.middleware import DOCS, OPEN_PATHS, OPENAPI, PAGE, ROLES, ROOT, listed
from edgeflow.service.security.auth import ADMIN, Role
from scripts.documents.schemas import default_of, kind_of
from scripts.documents.tables import inline, table

HEAD = """# HTTP

Every route of the HTTP port (`http.port`, 8000 by default), as the service itself documents it: a running service shows
this page with a form for each route at `/docs/api`, and as OpenAPI at `/openapi.json`. Both, and these documents at
`/docs`, exist only where the service listens on loopback.

```bash
IMAGE=$(base64 -w0 frame.jpg)
curl -s http://127.0.0.1:8000/v1/act -H 'content-type: application/json' \\
    -d "{\\"image\\": \\"$IMAGE\\", \\"instruction\\": \\"grasp the red handle\\"}"
```

Every error is an [ErrorAnswer](#erroranswer): `code` is a gRPC status name, `field` the part of the request at fault.
Every answer repeats the header `x-request-id`, or has a new one. Where tokens are configured, a request sends
`authorization: Bearer TOKEN`, and its token has one of the roles that are named here ([security](ROLES_PAGE)).

Robots' own clients have another port: [clients](../robots/clients.md).
The stream of `/events` has [its own page](events.md).

"""


def document() -> dict[str, Any]:
    """The OpenAPI document of a service."""
    none: Any = None  # handlers are described, not called
    routes = [each for each in build_app(ServiceConfig(), none, none, none).routes if isinstance(each, Route)]
    described = [each for each in routes if each.path not in (ROOT, OPENAPI) and not each.path.startswith((DOCS, PAGE))]
    return openapi.document(described)


def page() -> str:
    """The page."""
    made = document()
    text = HEAD.replace("ROLES_PAGE", "../operate/security.md")
    for section in openapi.SECTIONS:
        text += f"## {section}\n\n"
        for names, operation in _operations(made["paths"], section):
            text += _entry(names, operation)
    return text + "## Objects in answers\n\n" + "".join(_objects(made["components"]["schemas"]))


def _operations(paths: dict[str, Any], section: str) -> Iterator[tuple[list[tuple[str, str]], dict[str, Any]]]:
    """Operations with their methods and paths; two paths of one meaning come together."""
    found: dict[str, tuple[list[tuple[str, str]], dict[str, Any]]] = {}
    for path, operations in paths.items():
        for method, operation in operations.items():
            if operation["tags"] == [section]:
                key = f"{method} {operation['summary']}"
                found.setdefault(key, ([], operation))[0].append((method.upper(), path))
    yield from found.values()


def _entry(names: list[tuple[str, str]], operation: dict[str, Any]) -> str:
    text = "### " + ", ".join(f"`{method} {path}`" for method, path in names) + "\n\n"
    text += f"{inline(operation['description'])}\n\n"
    text += f"Who may ask: {_roles(names[0][1])}.\n\n"
    content = operation.get("requestBody", {}).get("content", {})
    if content:
        kinds = " or ".join(f"`{kind}`" for kind in content)
        schema = next(iter(content.values()))["schema"]
        text += f"Body ({kinds}):\n\n{_fields(schema)}\n"
    rows = [(status, inline(_answer(response))) for status, response in operation["responses"].items()]
    return text + table(("Status", "Answer"), rows) + "\n"


def _roles(path: str) -> str:
    if path in OPEN_PATHS:
        return "anyone, without a token"
    roles = ROLES.get(listed(path.replace("{name}", "x")), ADMIN) | ADMIN
    return "any role" if roles == frozenset(Role) else ", ".join(f"`{role.value}`" for role in Role if role in roles)


def _answer(response: dict[str, Any]) -> str:
    schemas = [each.get("schema", {}) for each in response.get("content", {}).values()]
    names = [schema["$ref"].rpartition("/")[2] for schema in schemas if "$ref" in schema]
    said = response["description"].replace("Successful Response", "the answer")
    return said + "".join(f": [{name}](#{name.lower()})" for name in names if name != "ErrorAnswer")


def _fields(schema: dict[str, Any], components: dict[str, Any] | None = None) -> str:
    required = schema.get("required", ())
    rows = [
        (
            f"`{name}`",
            kind_of(field, components or {}),
            "required" if name in required else default_of(field),
            inline(field.get("description", "") or _unserved(field)),
        )
        for name, field in schema.get("properties", {}).items()
    ]
    if components is not None:
        return table(("Field", "Type", "Meaning"), [(name, kind, meaning) for name, kind, _, meaning in rows])
    return table(("Field", "Type", "Default", "Meaning"), rows)


def _unserved(field: dict[str, Any]) -> str:
    """The meaning of a field of OpenAI's API that is accepted with certain values only."""
    return "other values are rejected" if any("enum" in each for each in field.get("anyOf", ())) else ""


def _objects(components: dict[str, Any]) -> Iterator[str]:
    for name, schema in components.items():
        about = schema.get("description", "").split("\n\n")
        text = f"### `{name}`\n\n" + "".join(f"{inline(each)}\n\n" for each in about if each)
        yield f"{text}{_fields(schema, components)}\n"
