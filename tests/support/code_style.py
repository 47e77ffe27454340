"""Finds names and docstrings of opic/ and consumers/ that tell a reader nothing; `make lint` runs this file.

Names: no variable, argument, field, attribute, function or method is called by a word of BARE alone. A class method
`of` may be: `Snapshot.of(crawl)` is how these classes are made. So may a field in opic/messages/, named as on the wire.

Docstrings: a docstring of one line has at least one word that stands neither in the name, nor in the parameters, nor in
the class's name, besides the words of PLAIN. This is no judge of prose: it finds docstrings that say nothing at all.
"""

import ast
import re
import sys
from collections.abc import Iterator

from repository import relative, repository_files

BARE = {"found", "one", "at", "held", "look", "take", "place", "of"}
# Words that add nothing. Those that do, such as "no", "none" and "if", are not among them.
PLAIN = {
    *("a", "all", "an", "and", "each", "every", "for", "from", "given", "gives", "in", "is", "it", "its", "of", "on"),
    *("return", "returns", "tell", "tells", "that", "the", "their", "this", "to", "what", "whether", "which", "with"),
    *("yield", "yields"),
}
# Names that others chose, by file: a method that kafka-python calls, and a field that answers and dead letters have.
GIVEN = {"opic/ingest/kafka/record_batches.py": {"take"}, "opic/ingest/dead_letters.py": {"at"}}
ON_THE_WIRE = "opic/messages/"
GENERATED = "_pb2.py"

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_constructor(node: Function) -> bool:
    """Return whether a function is a class method `of`."""
    return node.name == "of" and any(getattr(each, "id", "") == "classmethod" for each in node.decorator_list)


def names_in(tree: ast.Module, *, fields: bool) -> Iterator[tuple[int, str, str]]:
    """Yield the names that a module gives: line, name and kind. Without `fields`, those of classes are left out."""
    left_out = set[ast.AST]()
    if not fields:
        classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
        left_out = {part.target for node in classes for part in node.body if isinstance(part, ast.AnnAssign)}
    for node in ast.walk(tree):
        if isinstance(node, Function) and not is_constructor(node):
            yield node.lineno, node.name, "function"
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg, "argument"
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in left_out:
            yield node.lineno, node.id, "variable"
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr, "attribute"
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.lineno, node.name, "variable"
        elif isinstance(node, ast.alias) and node.asname:
            yield getattr(node, "lineno", 0), node.asname, "variable"


def bare_names(tree: ast.Module, file: str = "") -> list[str]:
    """Describe the names that say nothing, in the order of their lines."""
    allowed = GIVEN.get(file, set())
    lines = []
    for line, name, kind in sorted(set(names_in(tree, fields=not file.startswith(ON_THE_WIRE)))):
        if name in BARE - allowed:
            wanted = "a verb and a noun" if kind == "function" else "a noun that says what it is"
            lines.append(f"{file}:{line}: {kind} `{name}`: give it {wanted}")
    return lines


def words_of(text: str) -> set[str]:
    """Return the words of a text or a name: in lower case, in the singular."""
    text = re.sub(r"([a-z\d])([A-Z])", r"\1 \2", text).replace("_", " ").lower()
    words = re.findall(r"[a-z\d]+(?:'t)?", text)
    return {word.removesuffix("s") if len(word) > 3 and not word.endswith("ss") else word for word in words}


def definitions_in(node: ast.AST, of_class: str = "") -> Iterator[tuple[Definition, str]]:
    """Yield functions and classes, each with the name of the class that it stands in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield child, of_class
        yield from definitions_in(child, child.name if isinstance(child, ast.ClassDef) else of_class)


def empty_docstrings(tree: ast.Module, file: str = "") -> list[str]:
    """Describe the docstrings of one line that only repeat the name."""
    lines = []
    for node, of_class in definitions_in(tree):
        docstring = ast.get_docstring(node)
        if docstring is None or "\n" in docstring:
            continue
        known = words_of(f"{node.name} {of_class}") | {word.removesuffix("s") for word in PLAIN} | PLAIN
        if isinstance(node, Function):
            known |= {word for each in ast.walk(node.args) if isinstance(each, ast.arg) for word in words_of(each.arg)}
        if words_of(docstring) <= known:
            lines.append(
                f"{file}:{node.lineno}: docstring of `{node.name}`: it repeats the name; say more, or delete it"
            )
    return lines


def complaints() -> list[str]:
    """Describe everything that is wrong with the library and its processes."""
    lines = []
    for path in repository_files():
        file = relative(path)
        if file.startswith(("opic/", "consumers/")) and file.endswith(".py") and not file.endswith(GENERATED):
            tree = ast.parse(path.read_text())
            lines += bare_names(tree, file) + empty_docstrings(tree, file)
    return lines


if __name__ == "__main__":
    lines = complaints()
    for line in lines:
        print(line)
    sys.exit(1 if lines else 0)
