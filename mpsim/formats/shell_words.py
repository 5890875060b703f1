"""Words and operators of a bash script, with their quotes and expansions found and not worked out.

References
----------
GNU Bash manual, 3.1: quoting, comments, words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mpsim.errors import FormatError

__all__ = ["ASSIGNMENT", "Part", "Scanner", "Token"]

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]=]*)\])?(\+?)=", re.DOTALL)
Part = tuple[str, str, bool, int]  # kind (text, variable, command, sum), content, quoted, line
Token = tuple[
    str, Sequence[Part] | str, int
]  # word with its parts, array with its text, or operator


class Scanner:
    """Characters of a script as words and operators; expansions are found and not worked out."""

    def __init__(self, text: str, line: int) -> None:
        self.text = text
        self.place = 0
        self.line = line
        self.documents: list[str] = []

    def tokens(self) -> Iterator[Token]:
        """Words, operators, and the text of arrays."""
        text = self.text
        while self.place < len(text):
            letter = text[self.place]
            if letter == "\\" and text[self.place : self.place + 2] == "\\\n":
                self._step(2)
            elif letter in " \t\r":
                self._step(1)
            elif letter == "#":
                end = text.find("\n", self.place)
                self.place = len(text) if end < 0 else end
            elif letter == "\n":
                yield "operator", "\n", self.line
                self._step(1)
                self._skip_documents()
            elif letter in ";&|()<>" or re.match(r"\d?&?[<>]", text[self.place : self.place + 3]):
                yield from self._operator()
            else:
                yield from self._word()
        yield "operator", "\n", self.line

    def quoted(self) -> list[Part]:
        """Parts of a text that stands between double quotes."""
        parts: list[Part] = []
        while self.place < len(self.text):
            self._piece(parts, quoted=True)
        return parts

    def _step(self, count: int) -> None:
        self.line += self.text.count("\n", self.place, self.place + count)
        self.place += count

    def _operator(self) -> Iterator[Token]:
        text = self.text
        redirection = re.compile(r"(\d?|&)(<<<|<<-?|>>|>\||[<>]&?)").match(text, self.place)
        if redirection is not None and redirection[2]:
            self._step(len(redirection[0]))
            while self.place < len(text) and text[self.place] in " \t":
                self._step(1)
            if text[self.place : self.place + 1] == "(":  # process substitution
                self._step(1)
                self._until(")", "(")
                return
            target: list[Part] = []
            while self.place < len(text) and text[self.place] not in " \t\r\n;&|()<>":
                self._piece(target, quoted=False)
            if redirection[2] in ("<<", "<<-"):
                self.documents.append("".join(part[1] for part in target))
            return
        for operator in ("&&", "||", ";;", "|&", "()"):
            if text.startswith(operator, self.place):
                yield "operator", operator, self.line
                self._step(2)
                return
        yield "operator", text[self.place], self.line
        self._step(1)

    def _skip_documents(self) -> None:
        """Here-documents: text for another program."""
        for end in self.documents:
            while self.place < len(self.text):
                stop = self.text.find("\n", self.place)
                stop = len(self.text) if stop < 0 else stop
                found = self.text[self.place : stop].strip() == end
                self._step(min(stop + 1, len(self.text)) - self.place)
                if found:
                    break
        self.documents = []

    def _word(self) -> Iterator[Token]:
        line = self.line
        parts: list[Part] = []
        while self.place < len(self.text) and self.text[self.place] not in " \t\r\n;&|()<>":
            self._piece(parts, quoted=False)
        opens = self.place < len(self.text) and self.text[self.place] == "("
        last = parts[-1] if parts else None
        if (
            opens
            and last is not None
            and len(parts) == 1
            and last[0] == "text"
            and ASSIGNMENT.fullmatch(last[1])
        ):
            yield "word", parts, line
            self._step(1)
            start = self.line
            yield "array", self._until(")", "("), start
            return
        yield "word", parts, line

    def _piece(self, parts: list[Part], *, quoted: bool) -> None:
        """One letter, quote or expansion of a word."""
        text, letter = self.text, self.text[self.place]
        if letter == "\\":
            following = text[self.place + 1 : self.place + 2]
            line = self.line
            self._step(2)
            if following != "\n":
                keeps = quoted and following not in '$`"\\'
                _add(parts, ("\\" if keeps else "") + following, True, line)
        elif letter == "'" and not quoted:
            end = text.find("'", self.place + 1)
            if end < 0:
                raise FormatError(
                    f"line {self.line}: a quote ' is left open; the script breaks off"
                )
            line = self.line
            content = text[self.place + 1 : end]
            self._step(end + 1 - self.place)
            _add(parts, content, True, line)
        elif letter == '"' and not quoted:
            self._double(parts)
        elif letter == "$":
            self._dollar(parts, quoted=quoted)
        elif letter == "`":
            line = self.line
            self._step(1)
            parts.append(("command", self._until("`", ""), quoted, line))
        else:
            _add(parts, letter, quoted, self.line)
            self._step(1)

    def _double(self, parts: list[Part]) -> None:
        start = self.line
        self._step(1)
        _add(parts, "", True, start)
        while self.place < len(self.text):
            if self.text[self.place] == '"':
                self._step(1)
                return
            self._piece(parts, quoted=True)
        raise FormatError(f'line {start}: a quote " is left open; the script breaks off')

    def _dollar(self, parts: list[Part], *, quoted: bool) -> None:
        text, line = self.text, self.line
        ahead = text[self.place : self.place + 3]
        if ahead == "$((":
            self._step(3)
            content = self._until("))", "(")
            parts.append(("sum", content, quoted, line))
        elif ahead[:2] == "$(":
            self._step(2)
            parts.append(("command", self._until(")", "("), quoted, line))
        elif ahead[:2] == "${":
            self._step(2)
            parts.append(("variable", self._until("}", "{"), quoted, line))
        elif ahead[:2] == "$'" and not quoted:
            self._step(1)
            self._piece(parts, quoted=False)
        else:
            match = re.compile(r"\$(\w+|[@*#?$!-])").match(text, self.place)
            if match is None:
                _add(parts, "$", quoted, line)
                self._step(1)
                return
            name = match[1]
            if name[0].isdigit():
                name = name[0]
            self._step(1 + len(name))
            parts.append(("variable", name, quoted, line))

    def _until(self, end: str, opening: str) -> str:
        """Text up to a closing bracket, over quotes and inner brackets; the place is behind it."""
        text, start, line, depth = self.text, self.place, self.line, 0
        place = start
        while place < len(text):
            letter = text[place]
            if letter == "\\":
                place += 2
                continue
            if depth == 0 and text.startswith(end, place):
                self._step(place - start + len(end))
                return text[start:place]
            if letter == "'" and end != "`":
                place = max(text.find("'", place + 1), place)
            elif letter == opening:
                depth += 1
            elif letter == end[0] and depth:
                depth -= 1
            elif letter == "#" and end == ")" and (place == start or text[place - 1] in " \t\n"):
                stop = text.find("\n", place)
                place = len(text) if stop < 0 else stop
                continue
            place += 1
        raise FormatError(f"line {line}: {end!r} is missing; the script breaks off")


def _add(parts: list[Part], text: str, quoted: bool, line: int) -> None:
    """Add text to the last part where it is text of the same kind."""
    if parts and parts[-1][0] == "text" and parts[-1][2] == quoted:
        kind, before, _, first = parts[-1]
        parts[-1] = (kind, before + text, quoted, first)
    else:
        parts.append(("text", text, quoted, line))
