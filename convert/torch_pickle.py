"""Reads the pickle of a PyTorch file without running anything.

A pickle is a program. This interpreter knows the opcodes that lists, dicts, numbers,
strings and tensors need; it never imports, never calls what a file names and never
hashes or prints a nested value, so that a hostile file ends in one sentence.

Source:
    Python, pickletools.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redrafter_mlx.convert.torch_views import GLOBALS, STORAGE, Maker
from redrafter_mlx.errors import CheckpointError

_KEY_TYPES = (str, int, float, bool, type(None))  # a deep tuple would overflow the stack in hash()


def read_pickle(data: bytes, path: Path) -> Any:
    """Return what a data.pkl holds: plain values, dicts and ``TensorView``.

    Args:
        data: The pickle.
        path: The file that it is from, for messages.

    Raises:
        CheckpointError: It names anything that a tensor does not need, or is malformed.
    """
    return _Interpreter(data, path).run()


class _Interpreter:
    """The machine that a pickle is written for, with little of its instruction set."""

    def __init__(self, data: bytes, path: Path) -> None:
        self.path = path
        self._data = data
        self._position = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        while (opcode := self.take(1)) != b".":
            act = _ACTIONS.get(opcode)
            if act is None:
                raise self.fail(f"it has the opcode {opcode!r}, which no tensor needs")
            act(self)
        return self.pop()

    def fail(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path} is damaged or no file of tensors: at byte {self._position} of its "
            f"data.pkl {what}; save the state_dict() alone."
        )

    def take(self, num_bytes: int) -> bytes:
        begin, end = self._position, self._position + num_bytes
        if end > len(self._data):
            raise self.fail(f"{num_bytes} bytes are wanted and {len(self._data) - begin} left")
        self._position = end
        return self._data[begin:end]

    def skip(self, num_bytes: int) -> None:
        self.take(num_bytes)

    def number(self, code: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def text(self, code: str) -> str:
        return self._decode(self.take(self.number(code)))

    def line(self) -> str:
        end = self._data.find(b"\n", self._position)
        if end < 0:
            raise self.fail("a name does not end")
        line = self._decode(self.take(end - self._position))
        self.skip(1)
        return line

    def _decode(self, data: bytes) -> str:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail("is a text that is not UTF-8") from error

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def pop(self) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise self.fail("a value is missing")
        return self._stack.pop()

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def pop_to_mark(self) -> list[Any]:
        if not self._marks:
            raise self.fail("a mark is missing")
        begin = self._marks.pop()
        values = self._stack[begin:]
        del self._stack[begin:]
        return values

    def pop_many(self, count: int) -> list[Any]:
        return [self.pop() for _ in range(count)][::-1]

    def put(self, index: int) -> None:
        value = self.pop()
        self._memo[index] = value
        self.push(value)

    def memoize(self) -> None:
        self.put(len(self._memo))

    def get(self, index: int) -> None:
        if index not in self._memo:
            raise self.fail(f"the memo has no number {index}")
        self.push(self._memo[index])

    def long(self) -> int:
        length = self.number("<B")
        if length > 8:
            raise self.fail(f"a whole number has {length} bytes")
        return int.from_bytes(self.take(length), "little", signed=True)

    def append(self, values: list[Any]) -> None:
        target = self.pop()
        if not isinstance(target, list):
            raise self.fail("is an append to what is no list")
        target.extend(values)
        self.push(target)

    def set_items(self, items: list[Any]) -> None:
        target = self.pop()
        keys, values = items[::2], items[1::2]
        if not isinstance(target, dict) or len(keys) != len(values):
            raise self.fail("items are set in what is no dict")
        if not all(isinstance(key, _KEY_TYPES) for key in keys):
            raise self.fail("a dict has a key that is neither a text nor a number")
        target.update(zip(keys, values, strict=True))
        self.push(target)

    def find_global(self, module: str, name: str) -> None:
        found = GLOBALS.get((module, name))
        if found is None:
            raise CheckpointError(
                f"{self.path} names {f'{module}.{name}'!r:.120}, which no tensor needs; nothing "
                "of it was run. Save the state_dict() alone, or do not trust the file."
            )
        self.push(found)

    def find_stacked_global(self) -> None:
        module, name = self.pop_many(2)
        if not isinstance(module, str) or not isinstance(name, str):
            raise self.fail("a name is no text")
        self.find_global(module, name)

    def reduce(self) -> None:
        function, arguments = self.pop_many(2)
        if not isinstance(function, Maker) or not isinstance(arguments, tuple):
            raise self.fail("is a call of what is no function")
        self.push(self._make(function, arguments))

    def find_storage(self) -> None:
        self.push(self._make(STORAGE, self.pop()))

    def _make(self, function: Maker, arguments: Any) -> Any:
        try:
            return function.make(arguments)
        except ValueError as error:
            raise self.fail(str(error)) from error

    def build(self) -> None:
        """Drop the attributes of a state_dict, ``_metadata``."""
        target, state = self.pop_many(2)
        if not isinstance(target, dict) or not isinstance(state, dict):
            raise self.fail("attributes are set on what is no dict")
        self.push(target)


_ACTIONS: dict[bytes, Callable[[_Interpreter], None]] = {
    b"\x80": lambda m: m.skip(1),  # the protocol
    b"\x95": lambda m: m.skip(8),  # a frame
    b"(": _Interpreter.mark,
    b"}": lambda m: m.push({}),
    b"]": lambda m: m.push([]),
    b")": lambda m: m.push(()),
    b"t": lambda m: m.push(tuple(m.pop_to_mark())),
    b"\x85": lambda m: m.push(tuple(m.pop_many(1))),
    b"\x86": lambda m: m.push(tuple(m.pop_many(2))),
    b"\x87": lambda m: m.push(tuple(m.pop_many(3))),
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"J": lambda m: m.push(m.number("<i")),
    b"K": lambda m: m.push(m.number("<B")),
    b"M": lambda m: m.push(m.number("<H")),
    b"\x8a": lambda m: m.push(m.long()),
    b"G": lambda m: m.push(m.number(">d")),
    b"X": lambda m: m.push(m.text("<I")),
    b"\x8c": lambda m: m.push(m.text("<B")),
    b"q": lambda m: m.put(m.number("<B")),
    b"r": lambda m: m.put(m.number("<I")),
    b"\x94": _Interpreter.memoize,
    b"h": lambda m: m.get(m.number("<B")),
    b"j": lambda m: m.get(m.number("<I")),
    b"a": lambda m: m.append(m.pop_many(1)),
    b"e": lambda m: m.append(m.pop_to_mark()),
    b"s": lambda m: m.set_items(m.pop_many(2)),
    b"u": lambda m: m.set_items(m.pop_to_mark()),
    b"c": lambda m: m.find_global(m.line(), m.line()),
    b"\x93": _Interpreter.find_stacked_global,
    b"R": _Interpreter.reduce,
    b"b": _Interpreter.build,
    b"Q": _Interpreter.find_storage,
}
