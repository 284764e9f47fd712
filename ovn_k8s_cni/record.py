"""Frozen records at the price of a plain class.

`dataclasses` costs a start of this program more than the whole CNI answer (it imports `inspect`, `re` and friends), so
a record here is a class whose annotations are its fields. Type checkers see a frozen dataclass.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar, Self, dataclass_transform
else:

    def dataclass_transform(**_: object) -> object:
        return lambda cls: cls


@dataclass_transform(frozen_default=True)
class Record:
    """Base of immutable value objects: fields are the annotations, defaults are the class attributes."""

    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        own = tuple(name for name in cls.__annotations__ if not name.startswith("_"))
        cls._fields = (*cls._fields, *(name for name in own if name not in cls._fields))

    def __init__(self, *values: Any, **named: Any) -> None:
        fields = self._fields
        if len(values) > len(fields):
            raise TypeError(f"{type(self).__name__} takes {len(fields)} values, {len(values)} given")
        state = self.__dict__
        for field, value in zip(fields, values, strict=False):
            state[field] = value
        for field in fields[len(values) :]:
            if field in named:
                state[field] = named.pop(field)
            elif not hasattr(type(self), field):
                raise TypeError(f"{type(self).__name__} lacks {field}")
        if named:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(named)}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be assigned: a record is immutable")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be deleted: a record is immutable")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, field) == getattr(other, field) for field in self._fields)

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, field) for field in self._fields))

    def __repr__(self) -> str:
        inside = ", ".join(f"{field}={getattr(self, field)!r}" for field in self._fields)
        return f"{type(self).__name__}({inside})"

    def replace(self, **changes: Any) -> Self:
        """Return a copy with `changes` applied."""
        return type(self)(**{field: getattr(self, field) for field in self._fields} | changes)
