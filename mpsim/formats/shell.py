"""Bash scripts read for the commands that they launch: nothing is run, and no variable is looked up outside the file.

Plain assignments, arrays, ``${V:-x}`` and sums of integers are worked out; what depends on a command, on the machine or on a branch stays unknown and is
named, so that a reader refuses it where it matters and nowhere else.

References
----------
GNU Bash manual, 3.4 and 3.5: parameters and expansions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from mpsim.errors import FormatError
from mpsim.formats.shell_branches import Branch, truth
from mpsim.formats.shell_sums import value_of_sum
from mpsim.formats.shell_words import ASSIGNMENT, Part, Scanner, Token

__all__ = ["Command", "Word", "commands"]

MOST_TEXT: Final = 200_000
"""Characters of one word and of all words of a command: what doubles itself in a loop ends here."""
MOST_COMMANDS: Final = 20_000
DEEPEST: Final = 12  # scripts in words of scripts, defaults in defaults
_NAME = re.compile(r"[A-Za-z_]\w*")
_EXPANSION = re.compile(r"(#?)([A-Za-z_]\w*|\d+|[@*#?$!-])(?:\[([^\]]*)\])?(.*)", re.DOTALL)
_DEFAULT = re.compile(r"(:?[-=+?])(.*)", re.DOTALL)
_OPENING = frozenset({"if", "for", "while", "until", "case", "select"})
_CLOSING = frozenset({"fi", "done", "esac"})
_BETWEEN = frozenset({"then", "else", "elif", "do", "!", "time", "in", "{"})
_BUILTINS = frozenset({"export", "declare", "readonly", "local", "typeset"})
_NESTED = frozenset({"bash", "sh", "/bin/bash", "/bin/sh", "zsh"})


@dataclasses.dataclass(frozen=True, slots=True)
class Word:
    """One word of a command, expanded.

    Parameters
    ----------
    text : str
        What is known of it; empty where nothing is.
    line : int
        Where it is written, which may be in the assignment of a variable.
    unknown : tuple of str
        What could not be worked out and why, such as ``$JOB_SIZE (not set in the file)``.
    """

    text: str
    line: int
    unknown: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """One command that a script runs.

    Parameters
    ----------
    words : tuple of Word
        Program and arguments, variables expanded and split as bash does.
    line : int
    branch : int
        Line of the branch or loop that it stands in; 0 where it always runs.
    """

    words: tuple[Word, ...]
    line: int
    branch: int = 0


def commands(text: str, known: Mapping[str, str] | None = None) -> list[Command]:
    r"""Every command of a script, in its order.

    Parameters
    ----------
    text : str
    known : mapping of str to str
        Variables that the scheduler sets, such as ``SLURM_NNODES``.

    Raises
    ------
    FormatError
        If quotes or parentheses are left open, or expansions grow beyond any script.

    Examples
    --------
    >>> [[word.text for word in command.words] for command in commands('A=(--x 1)\nrun "${A[@]}" --n=$((2*4)) ${B:-c}')]
    [['run', '--x', '1', '--n=8', 'c']]
    """
    shell = _Shell({name: (Value(value, 0),) for name, value in (known or {}).items()})
    shell.run(_HIDDEN.sub("?", text), 1, 0)
    return shell.commands


_FIRST: Final = 0xE000
_HIDDEN = re.compile("[\ue000-\uf8ff]")
"""Letters of private use: each stands for something unknown in the text of a value, so that its place is kept while values are joined and split."""


class Value(NamedTuple):
    """Text of a variable or a word on its way, and the line that it was written on."""

    text: str
    line: int


@dataclasses.dataclass(slots=True)
class _Shell:
    """A script under way: its variables, and the commands met so far."""

    variables: dict[str, tuple[Value, ...]]
    commands: list[Command] = dataclasses.field(default_factory=list)
    arrays: set[str] = dataclasses.field(default_factory=set)
    branches: list[Branch] = dataclasses.field(default_factory=list)
    reasons: list[str] = dataclasses.field(default_factory=list)
    after: int = 0  # line of a && or || whose command may or may not run
    joint: str = ""  # && or || before the present command
    status: bool | None = True  # whether the last command succeeded
    in_function: bool = False  # its name is read and its body is not

    def run(self, text: str, line: int, depth: int) -> None:
        """Walk through a script, or through a string that is run as one."""
        if depth > DEEPEST:
            raise FormatError(f"line {line}: scripts in strings of scripts, deeper than {DEEPEST}")
        statement: list[Token] = []
        for token in Scanner(text, line).tokens():
            kind, content, number = token
            if kind != "operator" or (content in ("&&", "||") and _in_test(statement)):
                statement.append(token)
                continue
            if content == "()":
                self._open_function(number)
                statement = []
                continue
            self._statement(statement, depth, str(content))
            statement = []
            self._follow(str(content), number)
        self._statement(statement, depth, "\n")

    def _follow(self, operator: str, line: int) -> None:
        """Come behind an operator: what follows && or || hangs on the command before."""
        if operator in ("&&", "||"):
            self.joint = operator
            if self.status is None:
                self.after = self.after or line
        elif operator in ("\n", ";", "&", ";;"):
            self.joint, self.after = "", 0
        top = self.branches[-1] if self.branches else None
        if operator == ";;" and top is not None and top.kind == "case":
            top.turn()
            top.is_pattern = True

    def _open_function(self, line: int) -> None:
        if not self.in_function:
            self.branches.append(Branch(line, "function"))
        self.in_function = True

    @property
    def _branch(self) -> int:
        """Line of the innermost branch of which is not known whether it runs; 0 outside any."""
        return next(
            (item.line for item in reversed(self.branches) if item.line and item.runs is None),
            self.after,
        )

    @property
    def _skips(self) -> bool:
        """Whether the present command is known not to run."""
        if any(item.runs is False for item in self.branches):
            return True
        return self.status is not None and (
            (self.joint == "&&" and not self.status) or (self.joint == "||" and self.status)
        )

    def _statement(self, tokens: list[Token], depth: int, end: str) -> None:
        tokens = self._patterns(tokens, end)
        tokens = self._keywords(tokens, end)
        if not tokens or self._skips:
            return
        hangs = bool(self.joint) and self.status is None
        negated = _plain(tokens[0]) == "!"
        branch = self._branch
        status = self._command(tokens[1:] if negated else tokens, branch, depth)
        if negated and status is not None:
            status = not status
        self.status = None if hangs else status

    def _command(self, tokens: list[Token], branch: int, depth: int) -> bool | None:
        """Assign or record what one command says; returns whether it succeeds, as far as that is known."""
        exported = bool(tokens) and _plain(tokens[0]) in _BUILTINS
        rest = tokens[1:] if exported else tokens
        assigned: list[tuple[Token, Token | None]] = []
        while rest and (exported or _is_assignment(rest[0])):
            array = rest[1] if len(rest) > 1 and rest[1][0] == "array" else None
            if _is_assignment(rest[0]):
                assigned.append((rest[0], array))
            rest = rest[2:] if array is not None else rest[1:]
        if not rest:
            for token, array in assigned:
                self._assign(token, array, branch)
            return True
        if _plain(rest[0]) in ("[", "[[", "test"):
            return truth([self._tested(token) for token in rest])
        values = [value for token in rest for value in self._expand(token)]
        if not values:
            return None
        if len(self.commands) >= MOST_COMMANDS:
            raise FormatError(f"line {values[0].line}: more than {MOST_COMMANDS} commands")
        self.commands.append(Command(tuple(map(self._word, values)), rest[0][2], branch))
        for script in _scripts(values):
            self.run(script.text, script.line, depth + 1)
        return truth([values[0].text]) if len(values) == 1 else None

    def _tested(self, token: Token) -> str | None:
        """A word of a test; None where it is not known."""
        if token[0] == "operator":
            return str(token[1])
        text = " ".join(value.text for value in self._expand(token))
        return None if _HIDDEN.search(text) else text

    def _patterns(self, tokens: list[Token], end: str) -> list[Token]:
        """Take the patterns of a case out of a statement; what is left is a command."""
        top = self.branches[-1] if self.branches else None
        if top is None or not top.is_pattern or (tokens and _plain(tokens[0]) == "esac"):
            return tokens
        if end in ("|", ")"):
            top.patterns += [self._tested(token) for token in tokens]
        if end == ")":
            top.match()
        return []

    def _word(self, value: Value) -> Word:
        letters = dict.fromkeys(_HIDDEN.findall(value.text))
        unknown = tuple(self.reasons[ord(letter) - _FIRST] for letter in letters)
        return Word(_HIDDEN.sub("", value.text), value.line, unknown)

    def _unknown(self, reason: str, line: int) -> Value:
        """A value of which only is known why it is not known."""
        if reason not in self.reasons:
            if len(self.reasons) > 5000:
                raise FormatError(
                    f"line {line}: over 5,000 values that depend on what the script does not say"
                )
            self.reasons.append(reason)
        return Value(chr(_FIRST + self.reasons.index(reason)), line)

    def _keywords(self, tokens: list[Token], end: str) -> list[Token]:
        """Words of a statement behind its keywords, which open and close branches."""
        while tokens:
            word, line = _plain(tokens[0]), tokens[0][2]
            if word in ("for", "select", "case"):
                self._open_list(word, tokens, end)
                return []
            if word in _OPENING:
                self._open(Branch(line, "if" if word == "if" else "loop", word == "if" or None))
            elif word in _CLOSING or word == "}":
                if self.branches:
                    self.branches.pop()
                self.status = None
                return []
            elif word in ("then", "elif", "else"):
                self._turn(word)
            elif word == "function":
                self._open_function(line)
            elif word == "{":
                if not self.in_function:
                    self._open(Branch(0, "group"))
                self.in_function = False
            elif word == "!" or word not in _BETWEEN:
                return [] if self.in_function else tokens
            tokens = tokens[1:]
        return tokens

    def _open(self, branch: Branch) -> None:
        """Begin a branch; one that hangs on a command of which nothing is known may not run at all."""
        if self._skips:
            branch.runs, branch.done = False, True
        elif self.joint and self.status is None:
            branch.line, branch.runs, branch.done = branch.line or self.after, None, None
        self.branches.append(branch)
        self.joint = ""

    def _turn(self, word: str) -> None:
        """Come to another part of an if."""
        top = self.branches[-1] if self.branches else None
        if top is None or top.kind != "if":
            return
        if word == "then":
            top.take(self.status)
        elif word == "elif":
            top.turn()
        else:
            top.take(True)
        self.joint, self.after = "", 0

    def _open_list(self, word: str, tokens: list[Token], end: str) -> None:
        """Begin a loop, whose variable holds one value after the other, or a case."""
        line = tokens[0][2]
        name = _plain(tokens[1]) if len(tokens) > 1 else ""
        if word != "case":
            self._open(Branch(line, "loop"))
            if _NAME.fullmatch(name):
                reason = f"${name} (of a loop on line {tokens[1][2]})"
                self.variables[name] = (self._unknown(reason, tokens[1][2]),)
            return
        subject = self._tested(tokens[1]) if len(tokens) > 1 else None
        self._open(Branch(line, "case", subject=subject, is_pattern=True))
        behind = next((place for place, token in enumerate(tokens) if place > 1 and _plain(token) == "in"), None)  # fmt: skip
        if behind is not None and tokens[behind + 1 :]:
            self._patterns(tokens[behind + 1 :], end)

    def _assign(self, token: Token, array: Token | None, branch: int) -> None:
        first = token[1][0]
        assert not isinstance(first, str)
        match = ASSIGNMENT.match(first[1])
        assert match is not None
        name, index, more = match[1], match[2], match[3]
        line, old = token[2], self.variables.get(name, ())
        if array is not None:
            value = tuple(self._elements(array))
            self.arrays.add(name)
        else:
            parts = [(first[0], first[1][match.end() :], first[2], first[3]), *token[1][1:]]
            value = (
                _joined([self._value(part) for part in parts if not isinstance(part, str)], line),
            )
        if index is not None:
            self.arrays.add(name)
            place = int(index) if index.isdigit() and int(index) <= len(old) else len(old)
            value = (*old[:place], *value, *old[place + 1 :])
        elif more:
            added = (self._added(name, value, branch, line),) if branch else value
            value = (*old, *added) if name in self.arrays else (_joined([*old, *added], line),)
        if branch and not more:
            value = self._in_branch(name, value, token, branch)
        _check_size(value, line)
        self.variables[name] = value

    def _added(self, name: str, values: Iterable[Value], branch: int, line: int) -> Value:
        """An addition of a branch to a variable: unknown, and the flags in it are named."""
        words = [word for value in values for word in value.text.split() if word.startswith("--")]
        flags = " ".join(_HIDDEN.sub("", word.partition("=")[0])[:60] for word in words[:40])
        reason = f"{flags} (added to ${name} in a branch that begins on line {branch})"
        return Value(f" {self._unknown(reason.strip(), line).text} ", line)

    def _in_branch(
        self, name: str, value: tuple[Value, ...], token: Token, branch: int
    ) -> tuple[Value, ...]:
        """A value that is given in a branch: known only where the variable has it anyway."""
        before = self.variables.get(name)
        same = before is not None and [item.text for item in before] == [
            item.text for item in value
        ]
        if same or any(
            not isinstance(part, str) and part[1].startswith(f"{name}:-") for part in token[1]
        ):
            return value
        if before is not None and len(before) == 1 == len(value) and before[0].text:
            old, new = before[0].text, value[0].text
            if new.startswith(old):  # OPTIONS="$OPTIONS --more"
                added = self._added(name, [Value(new[len(old) :], token[2])], branch, token[2])
                return (_joined([*before, added], token[2]),)
        how = "set" if before is not None else "set only"
        return (
            self._unknown(f"${name} ({how} in a branch that begins on line {branch})", token[2]),
        )

    def _elements(self, array: Token) -> Iterator[Value]:
        assert isinstance(array[1], str)
        for inner in Scanner(array[1], array[2]).tokens():
            if inner[0] == "word":
                yield from self._expand(inner)

    def _expand(self, token: Token) -> Iterator[Value]:
        """The words that one written word becomes: unquoted variables are split, arrays give a word an element."""
        kind, parts, line = token
        if kind != "word":
            return
        current: list[Value] = []
        for part in parts:
            assert not isinstance(part, str)
            name = _whole_array(part)
            if name is not None:
                known = self.variables.get(name)
                elements = [self._unset(name, part[3])] if known is None else list(known)
            elif part[0] != "text" and not part[2]:
                value = self._value(part)
                elements = [Value(piece, value.line) for piece in value.text.split()]
                if value.text[:1].isspace() and current:
                    yield _joined(current, line)
                    current = []
            else:
                current.append(self._value(part))
                continue
            for place, element in enumerate(elements):
                if place and current:
                    yield _joined(current, line)
                    current = []
                current.append(element)
        if current:
            yield _joined(current, line)

    def _value(self, part: Part) -> Value:
        kind, content, _, line = part
        if kind == "text":
            return Value(content, line)
        if kind == "command":
            return self._unknown(
                f"$({' '.join(content.split())[:40]}) (a command, and none is run)", line
            )
        if kind == "sum":
            return self._sum(content, line)
        return self._variable(content, line)

    def _variable(self, content: str, line: int, depth: int = 0) -> Value:
        if depth > DEEPEST:
            raise FormatError(f"line {line}: defaults in defaults, deeper than {DEEPEST}")
        match = _EXPANSION.fullmatch(content)
        default = _DEFAULT.fullmatch(match[4]) if match is not None else None
        if match is None or (match[4] and default is None):
            return self._unknown(f"${{{content[:40]}}} (not worked out)", line)
        length, name, index, _ = match.groups()
        value = self.variables.get(name)
        if length and value is not None:
            return Value(
                str(len(value) if index in ("@", "*") else len(value[0].text if value else "")),
                line,
            )
        if index not in (None, "", "@", "*") and value is not None:
            value = (value[int(index)],) if index.isdigit() and int(index) < len(value) else None
        if default is not None:
            empty_counts = default[1][0] != ":"
            there = value is not None and (empty_counts or any(item.text for item in value))
            if default[1][-1] == "+":
                return self._nested(default[2], line, depth) if there else Value("", line)
            if default[1][-1] in "-=" and not there:
                given = self._nested(default[2], line, depth)
                if default[1][-1] == "=" and _NAME.fullmatch(name):
                    self.variables[name] = (given,)
                return given
        if value is None:
            return self._unset(name, line)
        return _joined(value if index in ("@", "*") else value[:1], line, between=" ")

    def _nested(self, text: str, line: int, depth: int) -> Value:
        """A default, in which variables stand too."""
        parts = Scanner(text.replace('"', "").replace("'", ""), line).quoted()
        values = [
            self._variable(part[1], line, depth + 1) if part[0] == "variable" else self._value(part)
            for part in parts
        ]
        return _joined(values, line)

    def _unset(self, name: str, line: int) -> Value:
        why = (
            "an argument of the script"
            if name.isdigit() or name in "@*#"
            else "not set in the file"
        )
        return self._unknown(f"${name} ({why})", line)

    def _sum(self, text: str, line: int) -> Value:
        """A sum of integers and variables; anything else stays unknown."""

        def value(match: re.Match[str]) -> str:
            return self._variable(match[1] or match[2] or match[3], line).text or "0"

        plain = re.sub(r"\$\{([^}]*)\}|\$(\w+)|\b([A-Za-z_]\w*)\b", value, text)
        hidden = "".join(_HIDDEN.findall(plain))
        if hidden:
            return Value(hidden, line)
        number = value_of_sum(plain)
        if number is None:
            return self._unknown(f"$(({text[:40].strip()})) (not worked out)", line)
        return Value(str(number), line)


def _in_test(statement: Sequence[Token]) -> bool:
    """Whether a statement is a test in double brackets that is still open."""
    words = [_plain(token) for token in statement]
    return "[[" in words and words[-1] != "]]"


def _plain(token: Token) -> str:
    """Text of a word that is written as it is; empty where it is quoted or expanded."""
    kind, parts, _ = token
    if kind != "word" or len(parts) != 1:
        return ""
    part = parts[0]
    return part[1] if not isinstance(part, str) and part[0] == "text" and not part[2] else ""


def _is_assignment(token: Token) -> bool:
    kind, parts, _ = token
    if kind != "word" or not parts:
        return False
    first = parts[0]
    return (
        not isinstance(first, str)
        and first[0] == "text"
        and not first[2]
        and ASSIGNMENT.match(first[1]) is not None
    )


def _whole_array(part: Part) -> str | None:
    """Name of the array that a part gives element by element (``"${A[@]}"``)."""
    if part[0] != "variable":
        return None
    match = re.fullmatch(r"([A-Za-z_]\w*)\[([@*])\]", part[1])
    if match is not None:
        return match[1] if match[2] == "@" or not part[2] else None
    return part[1] if part[1] in ("@", "*") else None


def _joined(values: Iterable[Value], line: int, between: str = "") -> Value:
    known = list(values)
    written = next((value.line for value in known if value.text and value.line), line)
    joined = Value(between.join(value.text for value in known), written)
    _check_size((joined,), line)
    return joined


def _check_size(values: Sequence[Value], line: int) -> None:
    if sum(len(value.text) + 1 for value in values) > MOST_TEXT:
        raise FormatError(
            f"line {line}: a variable grows over {MOST_TEXT:,} characters; needed a launch script"
        )


def _scripts(values: Sequence[Value]) -> Iterator[Value]:
    """Strings that a command runs as scripts: ``bash -c STRING``, ``eval WORDS``."""
    if values[0].text == "eval":
        yield _joined(values[1:], values[0].line, between=" ")
        return
    for place, value in enumerate(values[:-2]):
        if value.text in _NESTED and re.fullmatch(r"-[a-z]*c", values[place + 1].text):
            yield values[place + 2]
            return
