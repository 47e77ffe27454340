"""The elements of a page that tell where it leads: of HTML as Lexbor parses it, of XML as Expat does."""

import re
from contextlib import suppress
from html.entities import html5
from typing import Final, NamedTuple
from xml.parsers import expat

from selectolax.lexbor import LexborHTMLParser, LexborNode

SELECTOR: Final = "a, area[href], base[href], meta[content]"
NAMES: Final = ("a", "area", "base", "meta")
HTML: Final = "html"
SVG: Final = "svg"
MATH: Final = "math"
ANNOTATION: Final = "annotation-xml"
HTML_TYPES: Final = ("text/html", "application/xhtml+xml")  # Encodings of annotations whose children are HTML.
INTEGRATION_POINTS: Final = {  # Other elements whose children are HTML.
    SVG: ("foreignobject", "desc", "title"),
    MATH: ("mi", "mo", "mn", "ms", "mtext"),
}
NAMESPACES: Final = {"http://www.w3.org/1999/xhtml": HTML, "http://www.w3.org/2000/svg": SVG}
XML_DECLARATION: Final = re.compile(r"\A<\?xml\s[^>]*\?>")
XLINK: Final = "http://www.w3.org/1999/xlink"
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
    elements, tree = list[Element](), LexborHTMLParser(text)
    all_html = tree.css_first(f"{SVG}, {MATH}") is None
    namespaces = dict[int, str]()
    for node in tree.css(SELECTOR):
        attributes = {name: value or "" for name, value in node.attributes.items()}
        namespace = HTML if all_html or node.parent is None else _namespace_in(node.parent, namespaces)
        if namespace == SVG and node.tag == "a" and "xlink:href" in attributes:
            attributes.setdefault("href", attributes["xlink:href"])
        if namespace == HTML or (namespace == SVG and node.tag == "a"):
            elements.append(Element(node.tag or "", attributes))
    return elements


def _namespace_in(node: LexborNode, known: dict[int, str]) -> str:
    """Return the namespace of the children of an element. `known` has those of others, by `mem_id`."""
    path = list[LexborNode]()
    ancestor: LexborNode | None = node
    while ancestor is not None and ancestor.mem_id not in known:
        path.append(ancestor)
        ancestor = ancestor.parent
    namespace = HTML if ancestor is None else known[ancestor.mem_id]
    for element in reversed(path):
        known[element.mem_id] = namespace = _within(element, namespace)
    return namespace


def _within(node: LexborNode, namespace: str) -> str:
    """Return the namespace of the children of an element that is a child in a namespace itself."""
    tag, above = (node.tag or "").lower(), node.parent
    annotated = namespace == MATH and above is not None and above.tag == ANNOTATION
    if tag in (SVG, MATH) and (namespace == HTML or (annotated and tag == SVG)):
        return tag
    if namespace == MATH and tag == ANNOTATION:
        return HTML if (node.attributes.get("encoding") or "").lower() in HTML_TYPES else MATH
    return HTML if tag in INTEGRATION_POINTS.get(namespace, ()) else namespace


def xml_elements(text: str) -> list[Element]:
    """Return these elements of XML, in its order, up to its first error, as browsers do."""
    parser, collector = expat.ParserCreate("UTF-8"), _XmlElements()

    def declare_entities(context: str, _base: str | None, _system: str | None, public: str | None) -> int:
        if public is not None and public.startswith(XHTML):
            parser.ExternalEntityParserCreate(context).Parse(ENTITIES, True)
        return 1

    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_UNLESS_STANDALONE)
    parser.ExternalEntityRefHandler = declare_entities
    parser.StartElementHandler, parser.EndElementHandler = collector.start, collector.end
    with suppress(expat.ExpatError):  # Browsers show what is before it.
        # Its declaration said the encoding, by which it was decoded; NUL is an error, or may be taken for UTF-16.
        parser.Parse(XML_DECLARATION.sub("", text).partition("\0")[0].encode(), True)
    return collector.elements


class _XmlElements:
    """Collects the elements of XML that count. Browsers take undeclared prefixes of elements, which Expat does not."""

    def __init__(self) -> None:
        self.elements = list[Element]()
        self._namespaces = dict[str, list[str]]()  # By prefix, the innermost last.
        self._declared = list[list[str]]()  # The prefixes that each open element declares.
        self._templates = 0  # Open ones; what is in them does not count.

    def start(self, name: str, attributes: dict[str, str]) -> None:
        declared = [key[6:] for key in attributes if key == "xmlns" or key.startswith("xmlns:")]
        for prefix in declared:
            self._namespaces.setdefault(prefix, []).append(attributes[f"xmlns:{prefix}" if prefix else "xmlns"])
        self._declared.append(declared)
        prefixes = {
            key: key.partition(":")[0] for key in attributes if ":" in key and not key.startswith(("xml:", "xmlns:"))
        }
        if not all(map(self._namespaces.get, prefixes.values())):
            raise expat.ExpatError("an attribute whose prefix is not declared")
        prefix, _, local = name.rpartition(":")
        kind = NAMESPACES.get(self._namespace(prefix))
        self._templates += kind == HTML and local == "template"
        if kind is None or self._templates or local not in NAMES or (kind == SVG and local != "a"):
            return
        if kind == SVG:
            linked = (
                key for key, prefix in prefixes.items() if key.endswith(":href") and self._namespace(prefix) == XLINK
            )
            for key in linked:
                attributes.setdefault("href", attributes[key])
        self.elements.append(Element(local, attributes))

    def end(self, name: str) -> None:
        prefix, _, local = name.rpartition(":")
        self._templates -= local == "template" and NAMESPACES.get(self._namespace(prefix)) == HTML
        for prefix in self._declared.pop():
            self._namespaces[prefix].pop()

    def _namespace(self, prefix: str) -> str:
        declared = self._namespaces.get(prefix)
        return declared[-1] if declared else ""
