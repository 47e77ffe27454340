"""Names and docstrings of the library say something; see `code_style`."""

import ast

import pytest
from code_style import BARE, bare_names, complaints, empty_docstrings


def test_no_name_or_docstring_says_nothing() -> None:
    assert complaints() == []


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("found = 1", "opic/a.py:1: variable `found`: give it a noun that says what it is"),
        ("for one in (): ...", "1: variable `one`"),
        ("x = [at for at in ()]", "1: variable `at`"),
        ("if (held := x): ...", "1: variable `held`"),
        ("with x as take: ...", "1: variable `take`"),
        ("import x as found", "1: variable `found`"),
        ("try: ...\nexcept E as found: ...", "2: variable `found`"),
        ("match x:\n  case [one]: ...", "2: variable `one`"),
        ("def f(of): ...", "1: argument `of`"),
        ("f = lambda place: 1", "1: argument `place`"),
        ("class A:\n  held: int", "2: variable `held`"),
        ("def f(self):\n  self.held = 1", "2: attribute `held`"),
        ("def look(): ...", "1: function `look`: give it a verb and a noun"),
        ("class A:\n  async def take(self): ...", "2: function `take`"),
        ("class A:\n  def of(self): ...", "2: function `of`"),
    ],
)
def test_bare_name_is_detected(source: str, complaint: str) -> None:
    (line,) = bare_names(ast.parse(source), "opic/a.py")
    assert complaint in line


@pytest.mark.parametrize("name", sorted(BARE))
def test_bare_word_within_a_name_is_allowed(name: str) -> None:
    assert bare_names(ast.parse(f"{name}_x = x_{name} = {name}.x")) == []


def test_class_method_of_and_fields_on_the_wire_are_allowed() -> None:
    made = "class A:\n  @classmethod\n  def of(cls): ..."
    field = "class A:\n  found: int"
    assert bare_names(ast.parse(made)) == []
    assert bare_names(ast.parse(field), "opic/messages/a.py") == []
    assert bare_names(ast.parse("def f():\n  found: int = 1"), "opic/messages/a.py")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ('def read_pages(ids):\n  """Read the pages."""', "read_pages"),
        ('def read(pages):\n  """Read pages."""', "read"),
        ('class PageLinks:\n  """Page links."""', "PageLinks"),
        ('class PageLinks:\n  def count(self):\n    """Return the count of the links."""', "count"),
    ],
)
def test_docstring_that_repeats_the_name_is_detected(source: str, name: str) -> None:
    (line,) = empty_docstrings(ast.parse(source), "opic/a.py")
    assert f"docstring of `{name}`" in line


@pytest.mark.parametrize(
    "docstring", ["Read the pages of a shard.", "Read no pages.", "Read pages.\n\n  Raises:\n    BadInput: it is none."]
)
def test_docstring_that_says_more_is_allowed(docstring: str) -> None:
    assert empty_docstrings(ast.parse(f'def read_pages(ids):\n  """{docstring}"""')) == []
