// Why a page has its score, and whether it is fetched next: the answer of /v1/explain in sentences.

import { html, percent, plain, short, three, whole } from "./show.js";

const POLICIES = {
  interpolation: "interpolated over the window",
  fixed: "in a fixed window",
  variable: "over its last reads",
  improved: "over its last reads, and what it holds",
};

const amount = (n) => (typeof n === "bigint" || Number.isInteger(n) ? whole(n) : three(n));
const part = (share) => (share > 0 && share < 1e-4 ? `${three(100 * share)} %` : percent(share));
const times = (n, one, many) => `${whole(n)} ${Number(n) === 1 ? one : many}`;

function ofScore(estimate, policy) {
  const share = part(Number(estimate.value) / Number(estimate.of));
  const { H, C } = estimate.numbers ?? {};
  const sentence = estimate.rule === "exact"
    ? `${share} of the visits of a random surfer on the links as last read are to this page: its PageRank.`
    : estimate.rule === "static"
    ? `${share} of all cash went to this page: its reads passed on ${short(H)} grains, and it holds ${short(C)} now.`
    : `${share} of the cash flow reached this page, ${POLICIES[policy] ?? `by the policy ${plain(policy)}`}.`;
  const numbers = Object.entries(estimate.numbers ?? {}).map(([name, n]) => `${plain(name)} = ${amount(n)}`).join(", ");
  const formula = html("details", {}, html("summary", {}, "Formula"),
    html("p", {}, `${plain(estimate.formula)}${numbers ? ` with ${numbers}` : ""}: ${amount(estimate.value)} of ${amount(estimate.of)} in all`));
  return [sentence, ...(estimate.warm === false ? ["The window is not full yet, so the page’s whole life counts."] : []), formula];
}

function ofCash(cash, parts, history) {
  const reads = history ? `; ${times(history.reads, "read", "reads")} passed on ${short(history.total)}` : "";
  const came = parts.from_links === undefined || parts.from_links === null
    ? `Links brought ${short(parts.deposits)} more than reads passed on, the virtual page paid ${short(parts.credit)}.`
    : `Links brought ${short(parts.from_links)}, the virtual page granted ${short(parts.credit)}${reads}.`;
  return [`${short(cash)} grains are waiting for its next read.`, came];
}

function ofFrontier({ next, place, why_not: hindrances = [], rules = [] }) {
  const order = place ? `Place ${whole(place)} in the order by cash` : "It has no place in the order by cash";
  const list = [...hindrances.map(plain), ...rules.map((rule) => (rule.rule ? `${plain(rule.rule)}: ${plain(rule.effect)}` : plain(rule)))];
  const items = list.length ? [html("ul", {}, ...list.map((each) => html("li", {}, each)))] : [];
  return [`${order}; ${next ? "it may be handed out now." : "it can’t be handed out now:"}`, ...items];
}

// A definition list: a term and its sentences each; null where the answer has nothing to tell.
export function reasons({ estimate, cash, cash_parts: parts, history, known_pages: known, rank, percentile, weight, frontier, policy, ...more }) {
  const rows = [];
  const row = (name, lines) => rows.push(html("div", {}, html("dt", {}, name),
    html("dd", {}, ...lines.map((line) => (line instanceof Node ? line : html("p", {}, line))))));
  if (estimate) row("Score", ofScore(estimate, policy));
  if (rank && known) {
    const than = percentile === undefined ? "" : `, at least as important as ${Number(percentile.toFixed(2))} % of them`;
    row("Rank", [`${whole(rank)} of ${whole(known)} known pages${than}.`]);
  }
  if (parts) row("Cash", ofCash(cash, parts, history));
  if (weight !== undefined) {
    const named = more.class && more.class !== "other";
    row("Class", [named ? `${plain(more.class)}: its grants are ${weight} times the usual one.` : "None: it gets the usual grants."]);
  }
  if (frontier) row("Next fetch", ofFrontier(frontier));
  return rows.length ? html("dl", { class: "tree" }, ...rows) : null;
}
