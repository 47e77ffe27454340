// Why a page has its score, and whether it is fetched next: the sentences of /v1/explain.

import { html, plain, withBreaks } from "./show.js";

const FORMULA = "Formula: ";

function shown(sentence) {
  if (!sentence.startsWith(FORMULA)) {
    return html("p", {}, ...plain(sentence).split(/(https?:\/\/\S+)/).flatMap((part, at) => (at % 2 ? withBreaks(part) : [part])));
  }
  return html("details", {}, html("summary", {}, "Formula"), html("p", {}, plain(sentence.slice(FORMULA.length))));
}

// A definition list: what each reason is about, and its sentences; null where the answer has none.
export function reasons({ reasons: given }) {
  if (!given?.length) return null;
  return html("dl", { class: "tree" }, ...given.map(({ about, sentences }) =>
    html("div", {}, html("dt", {}, plain(about)), html("dd", {}, ...sentences.map(shown)))));
}
