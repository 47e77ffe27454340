"""Pages made from a seed, for comparisons of readers of pages: each with what often goes wrong, and with links."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from webencodings import lookup
from webencodings.labels import LABELS

PAGE_URL = "http://a.example/d/p?q"
XHTML = 'xmlns="http://www.w3.org/1999/xhtml"'
SVG = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
DOCTYPES = (
    "", "", "<!DOCTYPE html>",
    '<!DOCTYPE html PUBLIC "-//W3C//DTD HTML 4.01//EN" "http://www.w3.org/TR/html4/strict.dtd">',
    '<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Strict//EN" "http://www.w3.org/TR/xhtml1/DTD/xhtml1-strict.dtd">',
)  # fmt: skip
TEXTS = (
    "über café naïve", "日本語のページ", "Привет мир", "한국어 문서", "中文网页", "ภาษาไทย", "Ελληνικά", "עברית",
    "العربية", "Türkçe ğüş", "zażółć gęślą", "€ “quotes” – dash", "①Ⅳ～－髙﨑", "\U0001f600", "ﾊﾝｶｸ", "ё Ў ґ",
)  # fmt: skip
SCHEMES = (
    "http:",
    "https:",
    "HTTP:",
    "ftp:",
    "javascript:",
    "mailto:",
    "data:",
    "file:",
    "x-y:",
    "http",
    "//",
    "\\\\",
    "",
)
HOSTS = (
    "b.example",
    "B.Example:80",
    "u:p@b.example",
    "bücher.example",
    "127.1",
    "0x7f.1",
    "[::1]",
    "a b",
    "b.example.",
    "%62.example",
    "",
)
MARKS = (
    "?", "#", "/", "//", "\\", ".", "..", "%2e", "%2E.", "%", "%zz", "%e9", "|", "[", "]", "^", "`", "{", "}", "'",
    "~", "+", " ", "\t",
    "\n", "&amp;", "&", "&copy", "&eacute;", "&notit;", "&#233;", "&#x65E5;", "&#128;", "&#0;", "=", ";", ":", "@",
    "\0", "\x7f", '&quot;',
)  # fmt: skip
HREF_FORMS = (
    'href="{}"', 'href="{}"', 'href="{}"', "href='{}'", "HREF = {}", "/href={}", 'href="{}" href="/second"', "href",
    "x=1 href={}/",
    'xlink:href="{}"', 'href="{}" xlink:href="/x"', 'xlink:href="/x" href="{}"', 'rel=nofollow href="{}"',
    "Href\n=\n'{}'",
)  # fmt: skip
WRAPS = (
    "{}", "{}", "{}", "<p>{}", "<div>{}</div>", "<b>{}<i>", "<table>{}</table>", "<table><tr><td>{}</table>",
    "<table><caption>{}",
    "<ul><li>{}", "<select>{}</select>", "<select><option>{}</select>", "<button>{}</button>",
    "<noscript>{}</noscript>",
    "<template>{}</template>", "<script>{}</script>", "<style>{}</style>", "<textarea>{}</textarea>",
    "<title>{}</title>", "<xmp>{}</xmp>",
    "<iframe>{}</iframe>", "<noframes>{}</noframes>", "<object>{}</object>", "<video>{}</video>", "<map>{}</map>",
    "<form>{}</form>",
    "<!-- {} -->", "<!--> {} -->", "<!--{}--!>", "<![CDATA[{}]]>", "<svg>{}</svg>", "<svg><g><text>{}</g></svg>",
    "<svg><foreignObject>{}</foreignObject></svg>", "<svg><desc>{}</desc></svg>", "<svg><title>{}</title>",
    "<svg><style>{}</style></svg>",
    "<svg><script>{}</script></svg>", "<math>{}</math>", "<math><mi>{}</mi></math>",
    "<math><annotation-xml encoding='text/html'>{}</math>",
    "<math><annotation-xml>{}</math>", "<svg><p>{}", "<svg><![CDATA[{}]]></svg>", "<a href=/outer>{}</a>",
    "<frameset>{}</frameset>",
    "<div></p>{}</br>", "</body>{}", "</html>{}", "<head>{}</head>", "<body>{}", "<x-y>{}</x-y>", "<h1><h2>{}",
    "<dl><dt>{}<dd>",
    "<ruby>{}<rt>", "<nobr>{}<nobr>", "<fieldset>{}<legend>", "<details>{}", "<label>{}</label>",
    "<center><font>{}</center>", "<pre>\n{}",
    "<col>{}", "<tr>{}", "<image>{}", "<isindex>{}", "<br/>{}", "<a name=x>{}", "<{}>", "< a {}>",
    "<math><svg>{}</svg></math>",
)  # fmt: skip
BASES = (
    "/b/", "b/c", "http://c.example/x/y", "//c.example/", "ftp://c.example/x/", "file:///x/", "mailto:x@y",
    "javascript:0", "data:text/html,x",
    "http://[", "", "#f", "?r", "https:z", "about:blank", "http://é.example/é?é", " /s/ ", "HTTPS://C.example:443",
)  # fmt: skip
XML_WRAPS = (
    "{}", "{}", "<p>{}</p>", "<div xmlns=''>{}</div>", "<h:div xmlns:h='http://www.w3.org/1999/xhtml'>{}</h:div>",
    "<script>{}</script>",
    "<!-- {} -->", "<![CDATA[{}]]>", f"<svg {SVG}>{{}}</svg>",
    f"<s:svg xmlns:s='http://www.w3.org/2000/svg' {SVG}>{{}}</s:svg>",
    f"<svg {SVG}><foreignObject><p {XHTML}>{{}}</p></foreignObject></svg>",
    "<math xmlns='http://www.w3.org/1998/Math/MathML'>{}</math>",
    "<template>{}</template>", "<noscript>{}</noscript>", "<title>{}</title>", "{}&nbsp;", "{}&", "{}<br>",
    "<x:y>{}</x:y>", "{}<a href='1' href='2'/>",
)  # fmt: skip
XML_HREFS = (
    'href="{}"',
    'href="{}"',
    "href='{}'",
    'xlink:href="{}"',
    'HREF="{}"',
    'href="{}" xlink:href="/x"',
    "href={}",
)
ENCODINGS = sorted(set(LABELS.values()))
LABELS_OF = {name: [label for label, of in LABELS.items() if of == name] for name in ENCODINGS}


@dataclass(frozen=True, slots=True)
class GeneratedPage:
    """A page as a server answers it."""

    content_type: str  # "" for none.
    body: bytes
    parts: tuple[str, ...]  # What was put into it.


def generated_pages(count: int, seed: int) -> Iterator[GeneratedPage]:
    """Yield that many pages, the same for a seed."""
    for number in range(count):
        yield _Maker(random.Random(f"{seed} {number}")).page()


class _Maker:
    """Makes one page. Half of the pages have little that is unusual, so that each difference is seen alone."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._plain = rng.random() < 0.5
        self._parts = list[str]()
        self._text = rng.choice(TEXTS)

    def page(self) -> GeneratedPage:
        rng = self._rng
        kind = rng.choices(("html", "xhtml", "xml", "svg", "none"), (75, 10, 5, 4, 6))[0]
        self._parts.append(kind)
        encoding = self._encoding()
        content_type = {
            "html": "text/html", "xhtml": "application/xhtml+xml", "xml": rng.choice(("text/xml", "application/xml")),
            "svg": "image/svg+xml", "none": "",
        }[kind]  # fmt: skip
        if not self._plain:
            content_type = "".join(rng.choice((c.lower(), c.upper())) for c in content_type)
        how = rng.choices(
            ("header", "meta", "pragma", "mark", "declaration", "nothing", "two"), (20, 15, 15, 8, 8, 24, 10)
        )[0]
        self._parts.append(how)
        label = self._label(encoding)
        if content_type and how in ("header", "two"):
            content_type += rng.choice(
                ("; charset={}", ';charset="{}"', "; x=y; Charset={} ", ";  charset = {}")
            ).format(label)
        named = self._label(rng.choice(ENCODINGS)) if how == "two" else label
        text = self._html(how, named) if kind in ("html", "none") else self._xml(kind, how, named)
        body = self._encoded(text, encoding)
        if how == "mark" and encoding in ("utf-8", "utf-16le", "utf-16be"):
            body = self._encoded("\ufeff", encoding) + body
        return GeneratedPage(content_type, body, tuple(self._parts))

    def _encoding(self) -> str:
        return self._rng.choice(("utf-8", "windows-1252", self._rng.choice(ENCODINGS)))

    def _label(self, encoding: str) -> str:
        label = self._rng.choice(LABELS_OF[encoding])
        if self._rng.random() < 0.05:
            self._parts.append("no label")
            return self._rng.choice(("none-such", "cp037", "utf_8", "rot13", "'utf-8'", ""))
        return label if self._plain else "".join(self._rng.choice((c.lower(), c.upper())) for c in label)

    def _encoded(self, text: str, encoding: str) -> bytes:
        encoding = "utf-8" if encoding in ("replacement", "x-user-defined") else encoding
        codec = lookup(encoding)
        body: bytes = codec.codec_info.encode(text, "xmlcharrefreplace")[0]
        if self._rng.random() < 0.03:
            self._parts.append("wrong bytes")
            at = self._rng.randrange(len(body) or 1)
            body = body[:at] + self._rng.randbytes(self._rng.randint(1, 3)) + body[at:]
        if self._rng.random() < 0.02:
            self._parts.append("cut off")
            body = body[: self._rng.randrange(len(body) or 1)]
        return body

    def _href(self) -> str:
        rng = self._rng
        words = ("a", "b.html", "x", self._text, self._text.split()[0], "é")
        if self._plain:
            return (
                rng.choice(("", "/", "../", "http://b.example/", "//b.example/"))
                + rng.choice(words)
                + rng.choice(("", "?q=" + rng.choice(words), "#" + rng.choice(words)))
            )
        start = rng.choice(
            ("", "", "/", "?", "#", rng.choice(SCHEMES), rng.choice(SCHEMES) + "//" + rng.choice(HOSTS) + "/")
        )
        return start + "".join(rng.choice((rng.choice(words), rng.choice(MARKS))) for _ in range(rng.randint(0, 5)))

    def _link(self) -> str:
        form = 'href="{}"' if self._plain else self._rng.choice(HREF_FORMS)
        name = self._rng.choices(("a", "area", "A", "AREA", "base", "link"), (70, 12, 8, 3, 1, 6))[0]
        href = self._href()
        if '"{}"' in form:
            href = href.replace('"', "&quot;")
        closing = "" if name.lower() == "area" or self._rng.random() < 0.3 else f"</{name}>"
        return f"<{name} {form.format(href)}>{self._text if self._rng.random() < 0.3 else 'x'}{closing}"

    def _html(self, how: str, label: str) -> str:
        rng = self._rng
        head = list[str]()
        if how in ("meta", "two"):
            head.append(
                rng.choice(
                    (f"<meta charset={label}>", f"<META charset = '{label}'>", f'<meta name=x charset="{label}" />')
                )
            )
        if how == "pragma":
            content = rng.choice(
                ("text/html; charset={}", "text/html;charset='{}'", "charset={};x", "text/html; CHARSET = {} ")
            ).format(label)
            pair = [f'content="{content}"', rng.choice(("http-equiv=content-type", 'HTTP-EQUIV="Content-Type"'))]
            rng.shuffle(pair)
            head.append(f"<meta {' '.join(pair)}>")
        if rng.random() < 0.3:
            head.append(f"<title>{self._text}</title>")
        if rng.random() < 0.1:
            self._parts.append("long head")
            head.append(f"<script>{'x' * rng.choice((900, 1_000, 1_020, 1_100, 3_000))}</script>")
        if rng.random() < 0.25:
            self._parts.append("base")
            head += [f'<base href="{rng.choice(BASES)}">' for _ in range(rng.choice((1, 1, 2)))]
        if rng.random() < 0.1:
            self._parts.append("refresh")
            url = self._href().replace('"', "&quot;")
            form = rng.choice(
                (
                    "{}; url={}",
                    "{};URL='{}'",
                    "{},{}",
                    "{} {}",
                    " {} ; url = {}",
                    "{}.5;{}",
                    "{}",
                    "{}; urlx={}",
                    "url={}",
                )
            )
            name, content = rng.choice(("refresh", "Refresh")), form.format(rng.randint(100, 999), url)
            head.append(f'<meta http-equiv={name} content="{content}">')
        rng.shuffle(head)
        body = list[str]()
        for _ in range(rng.randint(1, 6)):
            wrap = rng.choice(WRAPS[:12]) if self._plain else rng.choice(WRAPS)
            body.append(wrap.replace("{}", "".join(self._link() for _ in range(rng.randint(1, 2)))))
        declaration = f"<?xml version='1.0' encoding='{label}'?>" if how == "declaration" else ""
        head_tags = rng.choice((("<head>", "</head>"), ("", ""), ("<html><head>", "</head><body>")))
        return declaration + rng.choice(DOCTYPES) + head_tags[0] + "".join(head) + head_tags[1] + "\n".join(body)

    def _xml(self, kind: str, how: str, label: str) -> str:
        rng = self._rng
        links = list[str]()
        for _ in range(rng.randint(1, 5)):
            href = self._href().replace('"', "&quot;")
            if self._plain:
                href = href.replace("&eacute;", "e")
            form = 'href="{}"' if self._plain else rng.choice(XML_HREFS)
            wrap = rng.choice(XML_WRAPS[:5] if self._plain else XML_WRAPS)
            links.append(wrap.replace("{}", f"<a {form.format(href)}>{self._text}</a>"))
        root, namespaces = {
            "svg": ("svg", SVG),
            "xml": ("r", f"xmlns:xlink='http://www.w3.org/1999/xlink' {XHTML}"),
        }.get(kind, ("html", XHTML))
        if rng.random() < 0.2 and kind != "svg":
            self._parts.append("base")
            links.insert(rng.randrange(len(links)), f'<base href="{rng.choice(BASES)}"/>')
        version = (
            f"<?xml version='1.0' encoding='{label}'?>"
            if how == "declaration"
            else rng.choice(("", "<?xml version='1.0'?>"))
        )
        return f"{version}{rng.choice(DOCTYPES)}<{root} {namespaces}>{''.join(links)}</{root}>"
