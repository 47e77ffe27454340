// Local domains: those with a ranked list, and one of the lists, with how much each round of fetching changed it.

import { ask, Trouble } from "./ask.js";
import { lines } from "./draw.js";
import { byId, html, momentOf, plain, setText, three, whole } from "./show.js";

const ROWS = 12;
let best = 1;
let chosen = null; // The domain whose list is shown; null: the newest.
let current = null; // Domain and time of the list that is shown.

// A cell with a domain, as a button that shows its list.
function domainCell(choose) {
  const button = html("button", { type: "button", class: "look" });
  let domain = null;
  button.addEventListener("click", () => choose(domain));
  return [html("td", {}, button), (one) => {
    domain = one.domain;
    setText(button, plain(domain));
  }];
}

// `rows` makes the rows of tables: { showRows, showRowsOf, cell, pageOf, share }.
export function showDomains({ domains }, rows) {
  const choose = (domain) => {
    chosen = domain;
    showRanking(domain, rows);
  };
  rows.showRows("local", domains, () => [
    domainCell(choose),
    rows.cell("n", ({ pages }) => whole(pages)),
    rows.cell("n", ({ outside_fetched: fetched }) => whole(fetched)),
    rows.cell("", ({ method }) => plain(method)),
    rows.cell("", ({ as_of: at }) => momentOf(at))], "No estimator has sent a list: opic local-rank makes one.");
  const now = domains.find(({ domain }) => domain === chosen) ?? domains[0];
  byId("ranking").hidden = !now;
  if (now && current !== `${now.domain} ${now.as_of}`) showRanking(now.domain, rows);
}

async function showRanking(domain, rows) {
  try {
    const answer = await ask(`v1/local/${encodeURIComponent(domain)}`, { n: ROWS });
    current = `${answer.domain} ${answer.as_of}`;
    byId("ranking").hidden = false;
    setText(byId("ranking-title"), `Pages of ${plain(answer.domain)}`);
    best = answer.pages[0]?.importance || 1;
    rows.showRowsOf(byId("ranking-rows"), answer.pages, () => [rows.cell("n rank", (page) => String(page.rank)), rows.pageOf(), rows.share(() => best)]);
    showChanges(answer.changes);
    setText(byId("ranking-said"), answer.pages.length ? "" : "The list is empty.");
  } catch (error) {
    if (!(error instanceof Trouble)) throw error;
    setText(byId("ranking-said"), plain(error.message));
  }
}

function showChanges(changes) {
  const last = changes.at(-1);
  lines(byId("ranking-curve"), {
    lines: [{
      name: "change of the ranking in a round, L1", kind: "first", now: last && three(last.change),
      points: changes.map(({ outside_fetched: fetched, change }) => [fetched, change]),
    }],
    x: { name: "outside pages fetched", show: (x) => String(Number(x.toPrecision(3))) },
    y: { log: true, show: (y) => String(Number(y.toPrecision(2))) },
    about: last ? `How much each round changed the ranking, by outside pages fetched: ${three(changes[0].change)} at ${whole(changes[0].outside_fetched)}, ${three(last.change)} at ${whole(last.outside_fetched)}.` : "No round yet.",
    height: 170,
  });
}
