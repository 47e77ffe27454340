"""The elements of a page that tell where it leads: of HTML as Lexbor parses it, of XML as Expat does."""

from collections.abc import Iterator
from contextlib import suppress
from html.entities import html5
from typing import Final, NamedTuple
from xml.parsers import expat

from selectolax.lexbor import LexborHTMLParser, LexborNode

SELECTOR: Final = "a, area[href], base[href], meta[content]"
NAMES: Final = ("a", "area", "base", "meta")
HTML: Final = "html"
SVG: Final = "svg"
ROOTS: Final = (SVG, "math")  # Elements of other namespaces in HTML; all in them is of the same namespace,
INTEGRATION_POINTS: Final = {  # but for what is in these.
    SVG: ("foreignobject", "desc", "title"),
    "math": ("mi", "mo", "mn", "ms", "mtext", "annotation-xml"),
}
NAMESPACES: Final = {"http://www.w3.org/1999/xhtml": HTML, "http://www.w3.org/2000/svg": SVG}
XLINK_HREF: Final = "http://www.w3.org/1999/xlink href"
# Public identifiers of document types with which browsers know the entities of HTML in XML.
XHTML: Final = ("-//W3C//DTD XHTML ", "-//W3C//DTD MathML 2.0", "-//WAPFORUM//DTD XHTML Mobile ")
ENTITIES: Final = "".join(
    f'<!ENTITY {name[:-1]} "{"".join(f"&#38;#{ord(character)};" for character in text)}">'
    for name, text in html5.items()
    if name.endswith(";")
)


class Element(NamedTuple):
    """One of NAMES, of HTML, or `a` of SVG, whose `xlink:href` counts as `href`."""

    name: str
    attributes: dict[str, str]


def html_elements(text: str) -> list[Element]:
    """Return these elements of HTML, in its order."""
    return list(_of_html(text))


def _of_html(text: str) -> Iterator[Element]:
    tree = LexborHTMLParser(text)
    all_html = tree.css_first(", ".join(ROOTS)) is None
    namespaces = dict[int, str]()
    for node in tree.css(SELECTOR):
        attributes = {name: value or "" for name, value in node.attributes.items()}
        namespace = HTML if all_html or node.parent is None else _namespace_in(node.parent, namespaces)
        if namespace == SVG and node.tag == "a" and "xlink:href" in attributes:
            attributes.setdefault("href", attributes["xlink:href"])
        if namespace == HTML or (namespace == SVG and node.tag == "a"):
            yield Element(node.tag or "", attributes)


def _namespace_in(node: LexborNode, known: dict[int, str]) -> str:
    """Return the namespace of the children of an element. `known` has those of others, by `mem_id`."""
    path = list[LexborNode]()
    at: LexborNode | None = node
    while at is not None and at.mem_id not in known and at.tag not in ROOTS:
        path.append(at)
        at = at.parent
    namespace = HTML if at is None else known.get(at.mem_id) or at.tag or HTML
    for one in reversed(path):
        if (one.tag or "").lower() in INTEGRATION_POINTS.get(namespace, ()):
            namespace = HTML
        known[one.mem_id] = namespace
    return namespace


def xml_elements(text: str) -> list[Element]:
    """Return these elements of XML, in its order, up to its first error, as browsers do."""
    found = list[Element]()

    def start(name: str, attributes: dict[str, str]) -> None:
        namespace, _, local = name.rpartition(" ")
        kind = NAMESPACES.get(namespace)
        if kind == SVG and local == "a" and XLINK_HREF in attributes:
            attributes.setdefault("href", attributes[XLINK_HREF])
        if (kind == HTML and local in NAMES) or (kind == SVG and local == "a"):
            found.append(Element(local, attributes))

    def declare_entities(context: str, _base: str | None, _system: str | None, public: str | None) -> int:
        if public is not None and public.startswith(XHTML):
            parser.ExternalEntityParserCreate(context).Parse(ENTITIES, True)
        return 1

    parser = expat.ParserCreate("UTF-8", " ")
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_UNLESS_STANDALONE)
    parser.ExternalEntityRefHandler = declare_entities
    parser.StartElementHandler = start
    with suppress(expat.ExpatError):  # Browsers show what is before it.
        parser.Parse(text.encode(), True)
    return found
