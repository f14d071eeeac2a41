"""Schemas of Kubernetes' objects: those of JobSet and TrainJob from their CustomResourceDefinitions, closed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

FOLDER = Path(__file__).parents[5] / "shared" / "data" / "kubernetes"


def schema_of(file: str) -> dict[str, Any]:
    """The schema of the kind that the file defines, in which a field that it does not name is an error.

    The test skips where there is no such file.
    """
    path = FOLDER / file
    if not path.is_file():
        pytest.skip(f"{path} is not there: the CustomResourceDefinitions are no part of the project")
    (definition,) = yaml.load_all(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    (version,) = definition["spec"]["versions"]
    found: dict[str, Any] = _closed(version["schema"]["openAPIV3Schema"])
    return found


def validate(document: object, schema: dict[str, Any]) -> None:
    """Validate a document. `jsonschema.validate` also checks the schema each time, which takes a second of these."""
    jsonschema.Draft202012Validator(schema).validate(document)


def _closed(schema: Any) -> Any:
    """The schema as jsonschema takes it: an API server drops unknown fields, or refuses them where it is strict."""
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items() if key != "properties"}
    if "properties" in schema:
        closed["properties"] = {name: _closed(one) for name, one in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            closed.setdefault("additionalProperties", False)
    if isinstance(pattern := closed.get("pattern"), str) and "(?i)" in pattern:
        closed["pattern"] = "(?i)" + pattern.replace("(?i)", "")  # Go's may stand anywhere, Python's at the front.
    if schema.get("x-kubernetes-int-or-string"):
        closed.pop("type", None)
    for key in ("anyOf", "allOf", "oneOf"):
        if key in schema:
            closed[key] = schema[key]
    return closed
