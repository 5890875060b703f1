"""Bash scripts read for the commands that they launch: nothing is run or looked up.

Words are those of `shlex`. Plain assignments, arrays, ``${V:-x}``, sums of integers and continued
lines are worked out. Branches, loops, functions and ``case`` are not followed: a variable set in
one is unknown and named with its reason, so that a reader asks for it where it matters.

References
----------
GNU Bash manual, 3.1, 3.4 and 3.5: quoting, parameters, expansions.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from mpsim import structs
from mpsim.errors import FormatError

MOST_TEXT: Final = 200_000
"""Characters of one value and of all words of a command: what doubles itself ends here."""
MOST_COMMANDS: Final = 20_000
DEEPEST: Final = 12  # scripts in words of scripts, defaults in defaults

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[(\w*)\])?(\+?)=(.*)", re.DOTALL)
_EXPANSION = re.compile(
    r"(#?)([A-Za-z_]\w*|\d+|[@*#?$!-])(?:\[([^\]]*)\])?(?:(:?[-=+?])(.*))?", re.DOTALL
)
_QUOTED = re.compile(r"\\(?:\n|.)|[\"$`]", re.DOTALL)
_PLAIN = re.compile(
    r"\\(?:\n|.)|'[^']*'|[\"$`\n]|(?<![^\s;&|(])\#[^\n]*|<<-?[ \t]*['\"]?\w+['\"]?"
    r"|(?:(?<!\S)\d|&)?(?:>>|[<>]&|>\||<<<|[<>])["
    r" \t]*(?:[<>]\([^)]*\)|(?:\"[^\"]*\"|'[^']*'|[^\s;&|\"'])*)",
    re.DOTALL,
)
"""What stands out of text between and outside double quotes; redirections are no words."""
_VARIABLE = re.compile(r"[A-Za-z_]\w*|[\d@*#?$!-]")
_OPENING: Final[Mapping[str, str]] = {
    "if": "branch",
    "for": "loop",
    "while": "loop",
    "until": "loop",
    "select": "loop",
    "case": "case",
    "{": "",
}
_CLOSING = frozenset({"fi", "done", "esac", "}"})
_BETWEEN = frozenset({"then", "else", "elif", "do", "!", "time", "function"})
_DECLARING = frozenset({"export", "declare", "readonly", "local", "typeset"})
_NESTED = frozenset({"bash", "sh", "/bin/bash", "/bin/sh", "zsh"})
_FIRST: Final = 0xF0000
_MARK = re.compile("[\U000f0000-\U000ffffd]")
"""Letters of private use: each is an expansion, or an unknown value, in its place."""


class Word(NamedTuple):
    """One word of a command, expanded."""

    text: str  # what is known of it; empty where nothing is
    line: int  # where it is written, which may be in the assignment of a variable
    # what could not be worked out and why, such as ``$JOB_SIZE (not set in the file)``
    unknown: tuple[str, ...] = ()


class Command(NamedTuple):
    """One command that a script runs: program and arguments, expanded and split as bash does."""

    words: tuple[Word, ...]
    line: int


class _Value(NamedTuple):
    """Text of a variable or a word on its way, and the line that it was written on."""

    text: str
    line: int


class _Part(NamedTuple):
    """Meaning of one mark: a variable, a sum, or the reason why a value is not known."""

    kind: str
    content: str
    quoted: bool
    line: int


class _Branch(NamedTuple):
    """A branch, loop, case or function that is open; a group has no kind, and always runs."""

    kind: str
    line: int


def commands(text: str, known: Mapping[str, str] | None = None) -> list[Command]:
    r"""Every command of a script, in its order.

    `known`: variables that the scheduler sets, such as ``SLURM_NNODES``. FormatError if quotes or
    parentheses are left open, or expansions grow beyond any script.

    Examples
    --------
    >>> script = 'A=(--x 1)\nrun "${A[@]}" --n=$((2*4)) ${B:-c}'
    >>> [[word.text for word in command.words] for command in commands(script)]
    [['run', '--x', '1', '--n=8', 'c']]
    """
    shell = _Shell({name: [_Value(value, 0)] for name, value in (known or {}).items()})
    shell.run(_MARK.sub("?", text), 1, 0)
    return shell.commands


@structs.dataclass(slots=True)
class _Shell:
    """A script under way: its variables, and the commands met so far."""

    variables: dict[str, list[_Value]]
    commands: list[Command] = structs.field(default_factory=list)
    parts: list[_Part] = structs.field(default_factory=list)
    branches: list[_Branch] = structs.field(default_factory=list)
    reasons: dict[str, str] = structs.field(default_factory=dict)
    arrays: set[str] = structs.field(default_factory=set)
    hangs: int = 0  # line of a && or || whose command may or may not run
    opens_function: int = 0  # line of a function whose name is read and whose body is not

    def run(self, text: str, line: int, depth: int) -> None:
        """Walk through a script, or through a string that is run as one."""
        if depth > DEEPEST:
            raise FormatError(f"line {line}: scripts in strings of scripts, deeper than {DEEPEST}")
        statement: list[_Value] = []
        tokens = list(self._tokens(text, line))
        place = 0
        while place < len(tokens):
            token = tokens[place]
            place += 1
            match = _ASSIGNMENT.fullmatch(token.text)
            opens = place < len(tokens) and tokens[place].text == "("
            if match is not None and not match[4] and opens:
                end = next((n for n in range(place, len(tokens)) if tokens[n].text == ")"), None)
                if end is None:
                    raise FormatError(f"line {token.line}: ')' is missing; the script breaks off")
                self._assign_array(match, token.line, tokens[place + 1 : end])
                place = end + 1
            elif token.text in _ENDS:
                is_function = (
                    token.text == "(" and len(statement) == 1 and tokens[place].text == ")"
                )
                self._statement(statement, depth)
                statement = []
                self._follow(token, is_function=is_function)
            else:
                statement.append(token)
        self._statement(statement, depth)

    def _follow(self, token: _Value, *, is_function: bool) -> None:
        """Come behind an operator: what follows && or || hangs on the command before."""
        if token.text in ("&&", "||"):
            self.hangs = self.hangs or token.line
        elif token.text in ("\n", ";", ";;", "&"):
            self.hangs = 0
        elif is_function:
            self.opens_function = token.line

    def _statement(self, tokens: Sequence[_Value], depth: int) -> None:
        """Open and close branches, then assign or record what one command says."""
        rest = list(tokens)
        while rest and not self._keyword(rest):
            rest = rest[1:]
        declares = bool(rest) and rest[0].text in _DECLARING
        rest = rest[1:] if declares else rest
        assigned: list[_Value] = []
        while rest and (declares or _ASSIGNMENT.fullmatch(rest[0].text)):
            assigned.append(rest.pop(0))
        if not rest:
            for token in assigned:
                self._assign(token)
            return
        values = [value for token in rest for value in self._expand(token)]
        if not values:
            return
        _check_size(values, rest[0].line)
        if len(self.commands) >= MOST_COMMANDS:
            raise FormatError(f"line {values[0].line}: more than {MOST_COMMANDS} commands")
        self.commands.append(Command(tuple(map(self._word, values)), rest[0].line))
        for script in _scripts(values):
            self.run(script.text, script.line, depth + 1)

    def _keyword(self, tokens: list[_Value]) -> bool:
        """Whether a command begins here; else the keyword before it opened or closed a branch."""
        word, line = tokens[0]
        if word in _CLOSING:
            if self.branches:
                self.branches.pop()
            return False
        if word not in _OPENING:
            if word == "function":
                self.opens_function = line
                del tokens[1:2]
            return word not in _BETWEEN
        kind = _OPENING[word]
        if word == "{" and self.opens_function:
            kind, line, self.opens_function = "function", self.opens_function, 0
        self.branches.append(_Branch(kind, line))
        if word in ("for", "select") and len(tokens) > 1:
            name = tokens[1].text
            reason = f"${name} (of a loop on line {tokens[1].line})"
            self.variables[name] = [self._unknown(reason, tokens[1].line)]
        if kind and word not in ("if", "while", "until"):
            del tokens[1:]
        return False

    @property
    def _branch(self) -> _Branch | None:
        """The innermost branch of which is not known whether it runs."""
        inner = next((item for item in reversed(self.branches) if item.kind), None)
        return inner or (_Branch("branch", self.hangs) if self.hangs else None)

    def _assign(self, token: _Value) -> None:
        match = _ASSIGNMENT.fullmatch(token.text)
        if match is None:
            return
        name, index, more, _ = match.groups()
        value = self._joined(match[4], token.line)
        old = self.variables.get(name, [])
        if index is not None:
            self.arrays.add(name)
            place = int(index) if index.isdigit() and int(index) <= len(old) else len(old)
            self._set(name, [*old[:place], value, *old[place + 1 :]], token.line)
        elif more and name not in self.arrays:
            before = "".join(item.text for item in old)
            self._set(name, [_Value(before + value.text, token.line)], token.line)
        else:
            self._set(name, [*old, value] if more else [value], token.line)

    def _assign_array(self, match: re.Match[str], line: int, tokens: Iterable[_Value]) -> None:
        words = (token for token in tokens if token.text != "\n")
        elements = [value for word in words for value in self._expand(word)]
        old = self.variables.get(match[1], []) if match[3] else []
        self.arrays.add(match[1])
        self._set(match[1], [*old, *elements], line)

    def _set(self, name: str, values: list[_Value], line: int) -> None:
        """Give a variable its value; a branch's is known only where the variable has it anyway."""
        _check_size(values, line)
        branch, old = self._branch, self.variables.get(name)
        if branch is not None and (old is None or _text(old) != _text(values)):
            where = f"in a {branch.kind} that begins on line {branch.line}"
            if old is not None and _text(values).startswith(_text(old)):
                added = _text(values)[len(_text(old)) :].split()
                words = [word for word in added if word[:2] == "--"]
                flags = " ".join(_MARK.sub("", word.partition("=")[0])[:60] for word in words[:40])
                reason = f"{flags} (added to ${name} {where})".strip()
                mark = self._unknown(reason, line)
                joined = _Value(f"{_text(old)} {mark.text} ", line)
                values = [*old, mark] if name in self.arrays else [joined]
            else:
                how = "set only" if old is None else "set"
                values = [self._unknown(f"${name} ({how} {where})", line)]
        self.variables[name] = values

    def _word(self, value: _Value) -> Word:
        reasons = (self._part(mark) for mark in dict.fromkeys(_MARK.findall(value.text)))
        return Word(_MARK.sub("", value.text), value.line, tuple(part.content for part in reasons))

    def _expand(self, token: _Value) -> Iterator[_Value]:
        """The words of one written word: unquoted variables are split, arrays give one each."""
        words = [_Value("", 0)]
        is_written = not token.text  # "" is a word
        for piece in filter(None, re.split(f"({_MARK.pattern})", token.text)):
            part = self._part(piece) if _MARK.fullmatch(piece) else None
            if part is None or part.kind == "unknown":
                added = [_Value(piece, token.line)]
            else:
                added = self._pieces(part)
                is_written = is_written or (part.quoted and bool(added))
            for place, value in enumerate(added):
                if place:
                    words.append(_Value("", 0))
                words[-1] = _Value(words[-1].text + value.text, words[-1].line or value.line)
        for value in words:
            if value.text or is_written:
                yield _Value(value.text, value.line or token.line)

    def _pieces(self, part: _Part) -> list[_Value]:
        """Text of an expansion, in pieces that belong to different words."""
        whole = re.fullmatch(r"(?:([A-Za-z_]\w*)\[([@*])\]|([@*]))", part.content)
        if part.kind == "variable" and whole is not None and not (part.quoted and whole[2] == "*"):
            values = self.variables.get(whole[1] or whole[3])
            if values is not None and part.quoted:
                return values
        value = self._value(part)
        if part.quoted:
            return [value]
        return [_Value(piece, value.line) for piece in re.split(r"\s+", value.text)]

    def _joined(self, text: str, line: int) -> _Value:
        """A text with every expansion in it worked out, and not split."""
        pieces = re.split(f"({_MARK.pattern})", text)
        values = [
            self._value(self._part(piece)) if _MARK.fullmatch(piece) else _Value(piece, line)
            for piece in pieces
        ]
        first = next((value.line for value in values if value.text and value.line), line)
        return _Value("".join(value.text for value in values), first)

    def _value(self, part: _Part, depth: int = 0) -> _Value:
        if part.kind == "unknown":
            return self._unknown(part.content, part.line)
        if part.kind == "sum":
            return self._sum(part.content, part.line)
        if depth > DEEPEST:
            raise FormatError(f"line {part.line}: defaults in defaults, deeper than {DEEPEST}")
        match = _EXPANSION.fullmatch(part.content)
        if match is None:
            return self._unknown(f"${{{part.content[:40]}}} (not worked out)", part.line)
        length, name, index, operator, default = match.groups()
        values = self.variables.get(name)
        if length and values is not None:
            return _Value(str(len(values) if index else len(_text(values))), part.line)
        if index not in (None, "", "@", "*") and values is not None:
            values = [values[int(index)]] if index.isdigit() and int(index) < len(values) else None
        if operator is not None and operator[-1] in "-=+":
            is_set = values is not None and (operator[0] != ":" or bool(_text(values)))
            if is_set == (operator[-1] == "+"):
                return self._default(name, default, operator, part.line, depth)
            if operator[-1] == "+":
                return _Value("", part.line)
        if values is None:
            is_argument = name.isdigit() or name in "@*#"
            why = "an argument of the script" if is_argument else "not set in the file"
            return self._unknown(f"${name} ({why})", part.line)
        shown = values if index in ("@", "*") else values[:1]
        return _Value(" ".join(each.text for each in shown), shown[0].line if shown else part.line)

    def _default(self, name: str, text: str, operator: str, line: int, depth: int) -> _Value:
        """A default, in which variables stand too; ``=`` gives it to the variable."""
        encoded = self._encoded(text.replace('"', "").replace("'", ""), line)
        value = _Value(
            _MARK.sub(lambda mark: self._value(self._part(mark[0]), depth + 1).text, encoded), line
        )
        _check_size([value], line)
        if operator[-1] == "=":
            self.variables[name] = [value]
        return value

    def _sum(self, text: str, line: int) -> _Value:
        """A sum of integers and variables; anything else stays unknown."""

        def number(match: re.Match[str]) -> str:
            found = next(group for group in match.groups() if group is not None)
            return self._value(_Part("variable", found, False, line)).text or "0"

        plain = re.sub(r"\$\{([^}]*)\}|\$(\w+)|\b([A-Za-z_]\w*)\b", number, text)
        marks = "".join(_MARK.findall(plain))
        if marks:
            return _Value(marks, line)
        try:
            if len(plain) > 200:
                raise ValueError
            value = _integer(ast.parse(plain.strip(), mode="eval").body)
        except (ValueError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
            return self._unknown(f"$(({text[:40].strip()})) (not worked out)", line)
        return _Value(str(value), line)

    def _part(self, mark: str) -> _Part:
        return self.parts[ord(mark) - _FIRST]

    def _mark(self, part: _Part) -> str:
        if len(self.parts) >= 65_000:
            raise FormatError(f"line {part.line}: over 65,000 expansions; needed a launch script")
        self.parts.append(part)
        return chr(_FIRST + len(self.parts) - 1)

    def _unknown(self, reason: str, line: int) -> _Value:
        """A value of which only is known why it is not known."""
        if reason not in self.reasons:
            self.reasons[reason] = self._mark(_Part("unknown", reason, False, line))
        return _Value(self.reasons[reason], line)

    def _tokens(self, text: str, line: int) -> Iterator[_Value]:
        """Words and operators; a line feed ends a statement unless it is continued."""
        for number, physical, ends in self._lines(text, line):
            reader = shlex.shlex(physical, posix=True, punctuation_chars=";&|()")
            reader.whitespace_split, reader.commenters = True, ""
            try:
                words = list(reader)
            except ValueError as error:
                raise FormatError(f"line {number}: {error}; the script breaks off") from error
            for word in words:
                if word and set(word) <= set(";&|()"):
                    for operator in re.findall(r"&&|\|\||;;|[;&|()]", word):
                        yield _Value(operator, number)
                else:
                    yield _Value(word, number)
            if ends:
                yield _Value("\n", number)

    def _lines(self, text: str, line: int) -> Iterator[tuple[int, str, bool]]:
        """Lines with marked expansions, and whether a statement may end there; quotes run over."""
        place, started, quoted, out, document = 0, line, 0, "", ""
        while place < len(text):
            match = (_QUOTED if quoted else _PLAIN).search(text, place)
            stop = len(text) if match is None else match.start()
            out += text[place:stop]
            line += text.count("\n", place, stop)
            if match is None:
                break
            place, piece = match.end(), match[0]
            if piece in ("$", "`"):
                mark, place = self._expansion(text, place - 1, line, quoted=bool(quoted))
                line += text.count("\n", stop, place)
                out += mark
                continue
            line += piece.count("\n")
            if piece == '"':
                quoted = 0 if quoted else line
                out += piece
            elif piece == "\\\n" and quoted:
                pass
            elif piece in ("\n", "\\\n"):
                yield started, out, piece == "\n"
                if piece == "\n" and document:
                    skipped = re.compile(rf"^\s*{document}\s*$", re.MULTILINE).search(text, place)
                    stop = len(text) if skipped is None else skipped.end()
                    line += text.count("\n", place, stop)
                    place, document = stop, ""
                started, out = line, ""
            elif piece[0] in "\\'":
                out += piece
            elif re.match(r"<<-?[ \t]*['\"]?\w", piece) and piece[:3] != "<<<":
                document = re.sub(r"\W", "", piece)
        if quoted:
            raise FormatError(f'line {quoted}: a quote " is left open; the script breaks off')
        if "'" in re.sub(r"\\.|'[^']*'|\"(?:\\.|[^\"])*\"", "", out, flags=re.DOTALL):
            raise FormatError(f"line {started}: a quote ' is left open; the script breaks off")
        yield started, out, True

    def _encoded(self, text: str, line: int) -> str:
        """A text between double quotes with its expansions marked."""
        out, place = "", 0
        while (stop := text.find("$", place)) >= 0:
            out += text[place:stop]
            mark, place = self._expansion(text, stop, line, quoted=True)
            out += mark
        return out + text[place:]

    def _expansion(self, text: str, place: int, line: int, *, quoted: bool) -> tuple[str, int]:
        """Mark of the expansion that begins here, and the place behind it."""
        for opening, closing in (("$((", "))"), ("$(", ")"), ("${", "}"), ("`", "`")):
            if text.startswith(opening, place):
                start = place + len(opening)
                stop = _closed(text, start, opening[-1], closing, line)
                content = text[start:stop]
                kind = {"$((": "sum", "${": "variable"}.get(opening, "unknown")
                if kind == "unknown":
                    words = " ".join(content.split())[:40]
                    value = self._unknown(f"$({words}) (a command, and none is run)", line)
                    return value.text, stop + len(closing)
                return self._mark(_Part(kind, content, quoted, line)), stop + len(closing)
        match = _VARIABLE.match(text, place + 1)
        if match is None:
            return ("" if text.startswith("$'", place) else "$"), place + 1
        return self._mark(_Part("variable", match[0], quoted, line)), match.end()


_ENDS = frozenset({"\n", ";", ";;", "&", "&&", "||", "|", "(", ")"})


def _closed(text: str, start: int, opening: str, closing: str, line: int) -> int:
    """Place of the closing bracket, over quotes and inner brackets."""
    depth, place = 0, start
    while place < len(text):
        letter = text[place]
        if depth == 0 and text.startswith(closing, place):
            return place
        if letter == "\\":
            place += 1
        elif letter == "'" and opening == "(":
            place = max(text.find("'", place + 1), place)
        elif letter == opening and opening != "`":
            depth += 1
        elif letter == closing[0] and depth:
            depth -= 1
        place += 1
    raise FormatError(f"line {line}: {closing!r} is missing; the script breaks off")


def _integer(node: ast.expr) -> int:
    """Value of a sum of integers; division cuts towards zero as bash does."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_integer(node.operand)
    if not isinstance(node, ast.BinOp):
        raise ValueError
    left, right = _integer(node.left), _integer(node.right)
    if isinstance(node.op, ast.Add | ast.Sub):
        value = left + (right if isinstance(node.op, ast.Add) else -right)
    elif isinstance(node.op, ast.Mult):
        value = left * right
    elif isinstance(node.op, ast.Div | ast.Mod):
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        value = quotient if isinstance(node.op, ast.Div) else left - quotient * right
    else:
        raise ValueError
    if abs(value) >= 10**18:
        raise ValueError
    return value


def _text(values: Iterable[_Value]) -> str:
    return " ".join(value.text for value in values)


def _check_size(values: Sequence[_Value], line: int) -> None:
    if sum(len(value.text) + 1 for value in values) > MOST_TEXT:
        raise FormatError(
            f"line {line}: a variable grows over {MOST_TEXT:,} characters; needed a launch script"
        )


def _scripts(values: Sequence[_Value]) -> Iterator[_Value]:
    """Strings that a command runs as scripts: ``bash -c STRING``, ``eval WORDS``."""
    if values[0].text == "eval":
        yield _Value(_text(values[1:]), values[0].line)
        return
    for place, value in enumerate(values[:-2]):
        if value.text in _NESTED and re.fullmatch(r"-[a-z]*c", values[place + 1].text):
            yield values[place + 2]
            return
