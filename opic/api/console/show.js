// Format values as text, and insert text into the page; never as markup, since much of it is untrusted.

const SVG = "http://www.w3.org/2000/svg";
const WHOLE = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", minimumSignificantDigits: 3, maximumSignificantDigits: 3 });
const BRIEF = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const THREE = new Intl.NumberFormat("en", { minimumSignificantDigits: 3, maximumSignificantDigits: 3 });
const TIME = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const SUPERSCRIPT = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
// What would be invisible, or turn the text around it: shown as its number.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb]|\p{Cs}|[\u{e0000}-\u{e0fff}]/gu;

export const byId = (id) => document.getElementById(id);

function made(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

// Children are elements or strings; a string becomes a text node.
export const html = (name, attributes = {}, ...children) => made(document.createElement(name), attributes, children);
export const svg = (name, attributes = {}, ...children) => made(document.createElementNS(SVG, name), attributes, children);

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// A sentence of an answer: it begins with a capital, and what stands in backticks is code.
export function setSentence(element, text) {
  const parts = (text[0]?.toUpperCase() ?? "").concat(text.slice(1)).split("`");
  if (element.textContent === parts.join("")) return;
  element.replaceChildren(...parts.map((part, at) => (at % 2 ? html("code", {}, part) : part)));
}

export const plain = (text) =>
  String(text).replace(HIDDEN, (found) => `\\u{${found.codePointAt(0).toString(16)}}`);

export const whole = (n) => (n === undefined || n === null ? "–" : WHOLE.format(n).replace("-", "−"));
export const short = (n) => (Math.abs(Number(n ?? 0)) < 1000 ? whole(n) : SHORT.format(n).replace("-", "−"));
export const brief = (n) => (Math.abs(n) < 10_000 ? whole(n) : BRIEF.format(n)); // On an axis.
export const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 2 : 1)} %`;

// Three digits that count: 0.0123, 4.57, and 3.10 × 10⁻⁷ where there would be too many zeros.
export function three(x) {
  if (x === undefined || x === null) return "–";
  if (x === 0) return "0";
  if (Math.abs(x) >= 1e-3 && Math.abs(x) < 1e6) return Math.abs(x) < 1000 ? THREE.format(x) : WHOLE.format(Math.round(x));
  const [digits, power] = x.toExponential(2).split("e");
  return `${digits} × 10${[...power.replace("+", "")].map((c) => SUPERSCRIPT[c]).join("")}`;
}

export const timeOf = (seconds) => TIME.format(new Date(seconds * 1000));
export const dayOf = (seconds) => DAY.format(new Date(seconds * 1000));
export const momentOf = (seconds) => `${dayOf(seconds)} ${timeOf(seconds)}`;

export function span(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 100) return `${s} s`;
  if (s < 6000) return `${Math.floor(s / 60)} min`;
  return s < 360000 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} d`;
}

export function ofTheWeb(url) {
  try {
    return ["http:", "https:"].includes(new URL(url).protocol);
  } catch {
    return false;
  }
}

// A link that leads out to a page that was crawled; null where the address is none of the web.
export function linkOut(url) {
  if (!ofTheWeb(url)) return null;
  return html("a", {
    class: "out", href: url, target: "_blank", rel: "noopener noreferrer nofollow", referrerpolicy: "no-referrer",
    "aria-label": `Open ${plain(url)} in a new tab`, title: "Open in a new tab",
  }, "↗");
}

// Fills a table or list and keeps what is there as it is, so that a selection and the focus stay where they are.
// Each row is made once by `make()`, which returns its element and a function that shows a value in it.
const KEPT = new WeakMap();

export function fill(body, values, make) {
  if (body.contains(document.activeElement)) return; // Nothing moves under somebody's finger.
  const kept = KEPT.get(body) ?? [];
  KEPT.set(body, kept);
  while (kept.length > values.length) kept.pop()[0].remove();
  while (kept.length < values.length) {
    const row = make();
    body.append(row[0]);
    kept.push(row);
  }
  values.forEach((value, at) => kept[at][1](value, at));
}

// A text with places where its lines may end: after the signs between the words of a URL, never inside a word.
export const withBreaks = (text) =>
  text.split(/(?<=[/?&=_.,:;+~|-])(?=[^/?&=_.,:;+~|\s-])/).flatMap((part, at) => (at ? [html("wbr"), part] : [part]));

// A cell with a page: its URL as a button that looks it up, and a way out. It has the lines that it needs, up to a limit.
const URL_CHARS = 200;

export function pageCell(lookUp) {
  const name = html("bdi");
  const button = html("button", { type: "button", class: "look" }, name);
  const cell = html("td", { class: "url" }, html("span", {}, button));
  let shown = null;
  button.addEventListener("click", () => lookUp(shown));
  return [cell, (url) => {
    if (url === shown) return;
    shown = url;
    const text = plain(url);
    const cut = text.length > URL_CHARS ? `${text.slice(0, URL_CHARS)}…` : text;
    const [, host, path] = /^(?:https:\/\/)?([^/]*\/\/[^/]*|[^/]*)(.*)$/su.exec(cut);
    name.replaceChildren(html("span", { class: "of-host" }, ...withBreaks(host)), html("wbr"), ...withBreaks(path));
    button.title = text;
    cell.querySelector("a")?.remove();
    const out = linkOut(url);
    if (out) cell.firstChild.append(out);
  }];
}

// Whatever an answer holds, as a list of names and values.
export function tree(value) {
  if (value === null || value === undefined) return html("span", { class: "void" }, "none");
  if (typeof value === "boolean") return html("span", {}, value ? "yes" : "no");
  if (typeof value === "bigint") return html("span", { class: "num" }, whole(value));
  if (typeof value === "number") return html("span", { class: "num" }, Number.isInteger(value) ? whole(value) : three(value));
  if (typeof value === "string") return html("bdi", {}, plain(value));
  if (Array.isArray(value)) {
    if (!value.length) return html("span", { class: "void" }, "none");
    return html("ul", {}, ...value.slice(0, 50).map((each) => html("li", {}, tree(each))));
  }
  return html("dl", { class: "tree" }, ...Object.entries(value).map(([name, each]) =>
    html("div", {}, html("dt", {}, plain(name).replaceAll("_", " ")), html("dd", {}, /(_at|_until|_of|^time|^until)$/.test(name) && typeof each === "number" && each > 1e8 ? html("span", { class: "num" }, momentOf(each)) : tree(each)))));
}
