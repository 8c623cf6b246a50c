"""Validation of JSON by its JSON Schema; the text is not changed."""

from __future__ import annotations

import json
from collections.abc import Callable

from vdl.pipeline.registered.registry import Schema


def reader(schema: Schema) -> Callable[[bytes], str]:
    """Return a reader of values.

    A reference that the registry does not have is not looked for elsewhere. Raises jsonschema's
    SchemaError for an invalid schema.
    """
    from jsonschema.validators import validator_for
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT7

    resources = [
        (name, Resource.from_contents(json.loads(text), default_specification=DRAFT7))
        for name, text in schema.references.items()
    ]
    known = Registry().with_resources(resources)
    contents = json.loads(schema.text)
    kind = validator_for(contents)
    kind.check_schema(contents)
    validator = kind(contents, registry=known)

    def read(data: bytes) -> str:
        text = data.decode()
        validator.validate(json.loads(text))
        return text

    return read
