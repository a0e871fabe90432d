"""Descriptions of the fields and parameters of the API, from ``descriptions.toml``."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

FILE = Path(__file__).parent / "descriptions.toml"


@cache
def read_descriptions() -> Mapping[str, Mapping[str, str]]:
    """Sections of the file: a text for each field."""
    return tomllib.loads(FILE.read_text())


def describe(name: str, *sections: str) -> str | None:
    """Text of a field or parameter, from the first section that has it."""
    table = read_descriptions()
    return next((table[section][name] for section in sections if name in table.get(section, {})), None)


def add_descriptions(properties: Mapping[str, JsonSchemaValue], *sections: str) -> None:
    """Add the descriptions of a schema's properties."""
    for name, schema in properties.items():
        text = describe(name, *sections)
        if text is not None:
            schema["description"] = text


class DescribedModel(BaseModel):
    """A model whose JSON schema describes each field."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema, with the descriptions of the model, its bases, its request, and all models, in this order."""
        schema = handler(core_schema)
        names = [base.__name__ for base in cls.__mro__]
        request = f"{cls.__name__.removesuffix('Out')}In"
        add_descriptions(handler.resolve_ref_schema(schema).get("properties", {}), *names, request, "fields")
        return schema
