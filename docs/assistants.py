"""The reference page of the tools for assistants, made from their signatures and the models of
their answers.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

from pydantic.fields import FieldInfo

from gpuledger_collector.mcp import answers
from gpuledger_collector.mcp.questions import QUESTIONS
from gpuledger_collector.mcp.tools import TOOLS

Table = Callable[[list[str], list[list[str]]], str]


def page(notice: str, table: Table) -> str:
    """Every tool with its parameters and the fields of its answers."""
    parts = [
        "# Tools for assistants\n",
        notice,
        "What `/mcp` of the collector and `gpuledger mcp` offer ([how to connect](../guides/assistants.md)). All tools only read; "
        f"parameters are texts, whole numbers and booleans. An answer has {answers.DEFAULT_ROWS} rows unless asked for more, at most "
        f"{answers.MAX_ROWS}, and at most {answers.MAX_CHARACTERS:,} characters; totals are of all rows. Names are cut to "
        f"{answers.NAME_LENGTH} characters.\n",
        table(
            ["tool", "answers"],
            [[f"[`{tool.__name__}`](#{tool.__name__})", first_line(tool)] for tool in TOOLS],
        ),
        "## Questions\n\nTen questions with the call that answers each; tests ask them of a ledger whose bill is known.\n",
        table(
            ["question", "call"],
            [[question.text, call(question.tool, question.arguments)] for question in QUESTIONS],
        ),
        "## Every answer\n\nAmounts are `Money` (decimal text with its currency), quantities `Quantity` (decimal text with its unit); "
        "null is unknown, never zero.\n",
        table(["field", "meaning"], fields(answers.Answer)),
    ]
    parts += [
        f"### {model.__name__}\n\n{inspect.getdoc(model)}\n\n{table(['field', 'meaning'], fields(model))}"
        for model in (
            answers.Money,
            answers.Quantity,
            answers.Span,
            answers.Coverage,
            answers.Proof,
            answers.Seal,
        )
    ]
    parts += [section(tool, table) for tool in TOOLS]
    return "\n".join(parts)


def first_line(tool: Callable[..., Any]) -> str:
    """What a tool answers."""
    return " ".join((inspect.getdoc(tool) or "").partition("\n\n")[0].split())


def call(tool: str, arguments: Any) -> str:
    """A call as people write it."""
    return f"`{tool}({', '.join(f'{name}={value}' for name, value in arguments.items())})`"


def section(tool: Callable[..., Any], table: Table) -> str:
    """A tool: what it answers, its parameters, and the fields of its rows and totals."""
    parts = [f"## {tool.__name__}\n\n{inspect.getdoc(tool)}\n"]
    signature = inspect.signature(tool, eval_str=True)
    rows = [parameter_row(parameter) for parameter in list(signature.parameters.values())[1:]]
    parts.append(
        table(["parameter", "type", "default", "meaning"], rows)
        if rows
        else "It takes no parameter.\n"
    )
    row, total = signature.return_annotation.__pydantic_generic_metadata__["args"]
    for title, model in (("Rows", row), ("Totals", total)):
        parts.append(
            f"{title}: {inspect.getdoc(model)}\n\n{table(['field', 'meaning'], fields(model))}"
        )
    return "\n".join(parts)


def parameter_row(parameter: inspect.Parameter) -> list[str]:
    """One parameter with its type, default, bounds and meaning."""
    kind, about = parameter.annotation, ""
    if typing.get_origin(kind) is typing.Annotated:
        kind, *notes = typing.get_args(kind)
        field = next(note for note in notes if isinstance(note, FieldInfo))
        about = field.description or ""
        bounds = [f"{name} {value}" for note in field.metadata for name, value in bound(note)]
        about += f" ({', '.join(bounds)})" if bounds else ""
    default = (
        "required" if parameter.default is inspect.Parameter.empty else f"`{parameter.default!r}`"
    )
    return [f"`{parameter.name}`", type_in_words(kind), default, about]


def bound(note: object) -> Iterator[tuple[str, object]]:
    """A bound in words."""
    for attribute, words in (
        ("ge", "at least"),
        ("le", "at most"),
        ("max_length", "characters: at most"),
    ):
        if (value := getattr(note, attribute, None)) is not None:
            yield words, value


def fields(model: Any) -> list[list[str]]:
    """The fields of a model, with their types and meaning."""
    return [
        [
            f"`{name}`",
            " ".join(
                filter(None, [f"{type_in_words(field.annotation)}.", field.description or ""])
            ),
        ]
        for name, field in model.model_fields.items()
    ]


def type_in_words(kind: Any) -> str:
    """A type in words."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return type_in_words(inner[0])
    if origin is typing.Literal:
        return ", ".join(str(value) for value in inner)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("null" if part is type(None) else type_in_words(part) for part in inner)
    if origin is dict:
        return "names by dimension"
    if inner:
        return f"list of {type_in_words(inner[0])}"
    if isinstance(kind, typing.TypeVar):
        return "see each tool"
    words = {"str": "text", "int": "whole number", "bool": "true or false"}
    name: str = kind.__name__
    return words.get(name, name)
