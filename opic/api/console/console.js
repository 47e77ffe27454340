// The console: polls the service, shows the answers with their age, and reports when an answer is missing.

import { ask, crawl, CRAWLS, token, Trouble } from "./ask.js";
import { bars, spark } from "./draw.js";
import { byId, dayOf, fill, html, linkOut, momentOf, ofTheWeb, pageCell, percent, plain, setSentence, setText, short, span, three, timeOf, tree, whole, withBreaks } from "./show.js";
import { showDomains } from "./local.js";
import { showSeries } from "./progress.js";
import * as view from "./view.js";
import { reasons } from "./why.js";

const ROWS = 12;
const LETTERS = 10;
const INFLOW_PAGES = 1000; // Of a domain, in order of first sight; the best of them are shown.
const WINDOWLESS = ["exact", "static"]; // Policies.
const RATE_SECONDS = 10; // The rate is that of so long.
const SPARK_POINTS = 60;
const BEAT_MS = 500;
const RETRY_SECONDS = [2, 4, 8, 15];
const MISSING = "Not available: this service does not have it.";
const MISSING_SECONDS = 60;
const AUDIT_COSTLY_SECONDS = 3; // A recount reads all columns: one that takes longer is done when asked for only.

let paused = false;
let away = null; // { at, tries, retryAt }
let warnings = []; // What an operator should see to, while all calls are answered.
let tokenWanted = false;
let beating = null;
const clock = () => performance.now() / 1000;

// --- What is asked, how often, and how it is shown -------------------------------------------------------------------

const samples = []; // [as_of, reads], of the last seconds.
const rates = [];

function showStats(stats) {
  const n = (name) => Number(stats[name] ?? 0);
  const events = n("reads") + n("failures") + n("departures") + n("exclusions") + n("dead_letters");
  setText(byId("known"), whole(stats.known_pages));
  setText(byId("known-sub"), n("gone_pages") ? `${whole(stats.gone_pages)} gone since` : "none gone");
  setText(byId("read"), whole(stats.read_pages));
  setText(byId("read-sub"), n("known_pages") ? `${percent(n("read_pages") / n("known_pages"))} of known` : "\u00a0");
  setText(byId("events"), whole(events));
  setText(byId("events-sub"), `${whole(stats.failures)} failed, ${whole(stats.dead_letters)} dead letters`);
  setText(byId("rounds"), n("rounds") < 1000 ? n("rounds").toFixed(2) : whole(Math.round(n("rounds"))));
  setText(byId("rounds-sub"), `clock ${three(n("clock"))} grains`);
  setText(byId("lag"), whole(stats.lag));
  setText(byId("lag-sub"), n("lag") ? "events wait" : "all took effect");
  setText(byId("links"), whole(stats.links));
  setText(byId("links-sub"), n("reads") ? `${(n("links") / n("reads")).toFixed(1)} a read, ${whole(stats.bad_links)} bad` : "\u00a0");
  setText(byId("bound"), stats.error_bound === undefined ? "–" : three(stats.error_bound));
  setText(byId("bound-sub"), stats.error_bound === undefined ? "none can be told now" : "of all pages together");
  byId("where").replaceChildren("Crawl ", html("b", {}, plain(stats.crawl)), ` in ${plain(stats.store)}, opic ${plain(stats.opic_version)}`);
  warnings = [...(stats.warnings ?? []), ...broken];
  const last = samples.at(-1);
  if (last && stats.as_of <= last[0]) return;
  samples.push([stats.as_of, n("reads")]);
  while (samples.length > 2 && samples[1][0] <= stats.as_of - RATE_SECONDS) samples.shift();
  if (!last) return;
  const [since, reads] = samples[0];
  setText(byId("rate"), three(Math.max(0, n("reads") - reads) / (stats.as_of - since)));
  rates.push(Math.max(0, n("reads") - last[1]) / (stats.as_of - last[0]));
  if (rates.length > SPARK_POINTS) rates.shift();
  spark(byId("spark"), rates, SPARK_POINTS);
}

let broken = []; // What the last recount of the books found wrong.

function showAudit(audit) {
  byId("audit").dataset.conserved = audit.conserved ? "yes" : "no";
  broken = audit.conserved ? [] : ["The books do not add up: see The books below, and OpicCashNotConserved in docs/operations.md."];
  const sum = BigInt(audit.pages) + BigInt(audit.virtual) + BigInt(audit.in_flight);
  const less = BigInt(audit.minted) - sum;
  const bad = audit.shards.filter((shard) => !shard.conserved).map((shard) => shard.shard);
  setText(byId("verdict"), audit.conserved ? "Every grain is accounted for."
    : less ? `${whole(less < 0n ? -less : less)} grains ${less > 0n ? "are missing" : "too many"}: see OpicCashNotConserved in docs/operations.md.`
      : `Totals differ from their recount in ${bad.length === 1 ? "shard" : "shards"} ${bad.join(", ")}: see OpicCashNotConserved in docs/operations.md.`);
  for (const part of ["pages", "virtual", "in_flight", "minted"]) setText(byId(`sum-${part}`), whole(audit[part]));
  byId("shards").hidden = audit.shards.length < 2 && audit.conserved;
  fill(byId("shard-rows"), audit.shards, () => {
    const cells = ["n", "n", "n", "n", "n", ""].map((kind) => html("td", { class: kind }));
    return [html("tr", {}, ...cells), (shard) => {
      const texts = [shard.shard, shard.pages, shard.virtual, shard.in_flight, shard.minted].map(whole);
      const wrong = (shard.mismatches ?? []).map(plain).join(", ");
      [...texts, shard.conserved ? "add up" : wrong || "don’t add up"].forEach((text, at) => setText(cells[at], text));
    }];
  });
}

// Rows of pages, or of what has an importance: a name, and numbers behind it.
function showRowsOf(body, values, cellsOf) {
  fill(body, values, () => {
    const cells = cellsOf();
    return [html("tr", {}, ...cells.map(([cell]) => cell)), (value, at) => cells.forEach(([, show]) => show(value, at))];
  });
}

function showRows(id, values, cellsOf, none) {
  showRowsOf(byId(`${id}-rows`), values, cellsOf);
  setText(byId(`${id}-none`), values.length ? "" : none);
}

const cell = (kind, textOf) => {
  const made = html("td", { class: kind });
  return [made, (value, at) => setText(made, textOf(value, at))];
};
const pageOf = () => {
  const [made, show] = pageCell(lookUp);
  return [made, ({ url }) => show(url)];
};
const share = (best) => {
  const meter = html("span", { class: "meter", "aria-hidden": "true" });
  const text = html("span");
  return [html("td", { class: "n share" }, text, meter), ({ importance }) => {
    setText(text, three(importance));
    meter.style.setProperty("--least", importance > 0 ? "4px" : "0px");
    meter.style.setProperty("--share", Math.min(1, importance / best()).toFixed(3));
  }];
};

let bestPage = 1, bestHost = 1;
function showTop({ pages, certainty }) {
  bestPage = pages[0]?.importance || 1;
  showRows("top", pages, () => [rankCell(), pageOf(), share(() => bestPage)], "No page is known yet.");
  setText(byId("top-certainty"), certainty ? plain(certainty) : "");
}

function rankCell() {
  const made = html("td", { class: "n rank" });
  return [made, ({ certain, rank }) => {
    setText(made, certain === false ? `≈ ${whole(rank)}` : whole(rank));
    made.title = certain === undefined ? "" : certain ? "The error bound makes this rank certain." : "Within the error bound, other pages may have this rank.";
  }];
}

function showHosts({ hosts }) {
  bestHost = hosts[0]?.importance || 1;
  showRows("hosts", hosts, () => [
    cell("host", ({ host }) => plain(host)),
    cell("n", (host) => `${whole(host.read_pages)} / ${whole(host.pages)}`),
    share(() => bestHost)], "No host is known yet.");
}

const ORDERS = {
  exact: "Largest key first. The key is importance for a random surfer who jumps to seeds or trusted pages more often (OPIC_SEED_SHARE). Pages read before come last.",
  cash: "Most cash first.",
  random: "In random order.",
  cycle: "In the order of the last read: the oldest first.",
};

function showNext({ pages, order, held_back: why }) {
  showRows("next", pages, () => [
    pageOf(),
    cell("read", (page) => (page.fetched_before ? "before" : "never")),
    cell("n", ({ key, fetched_before: read }) => (order === "cash" ? short(key) : read && order === "exact" ? "–" : three(key)))], "Nothing can be handed out right now.");
  setText(byId("next-key"), order === "cash" ? "Cash, grains" : "Key");
  setText(byId("next-order"), pages.length ? `${ORDERS[order] ?? ""} This is a look: it leases nothing.` : "");
  byId("held").hidden = !why.length;
  setText(byId("held-title"), pages.length ? "Not handed out now" : "Why");
  fill(byId("held-rows"), why, () => {
    const item = html("li");
    return [item, (sentence) => setSentence(item, plain(sentence))];
  });
}

function showDead({ dead_letters: letters }) {
  fill(byId("dead-rows"), letters, () => {
    const [why, where, value] = [html("p", { class: "why" }), html("p", { class: "where" }), html("code")];
    return [html("li", {}, why, where, value), (letter) => {
      setText(why, plain(letter.error));
      const cut = letter.value_bytes > 500 ? `, the first 500 of ${whole(letter.value_bytes)} bytes` : "";
      setText(where, `${momentOf(letter.at)}, ${plain(letter.topic)}/${plain(letter.partition)} at ${whole(letter.offset)}${letter.replayed ? ", published again" : ""}${cut}`);
      setText(value, plain(letter.value));
    }];
  });
  setText(byId("dead-none"), letters.length ? "" : "None.");
}

const again = (seconds) => (seconds ?? null) === null ? "" : seconds ? `, read again after ${span(seconds)} at the earliest` : ", read again at any time";

function showClasses({ classes, other }) {
  const rows = classes.length ? [...classes, { ...other, name: "all others" }] : [];
  showRows("classes", rows, () => [
    cell("", ({ name, revisit_seconds: seconds }) => `${plain(name)}${again(seconds)}`),
    cell("n", ({ weight }) => String(Number(weight.toPrecision(4)))),
    cell("n", (one) => `${whole(one.read_pages)} / ${whole(one.known_pages)}`),
    cell("n", ({ grant_share }) => percent(grant_share))], "No classes: every page gets the same grants.");
}

function ruleText({ effect, host, domain, path, query, note, revisit_seconds: seconds }) {
  const where = [host && `the host ${host}`, domain && `${domain} with all below it`, path && path !== "/" && `paths like ${path}`,
    query === true && "URLs with a query", query === false && "URLs without a query"].filter(Boolean);
  return `${effect === "deny" ? "Deny" : "Allow"} ${where.map(plain).join(", ") || "everything"}${again(seconds)}${note ? ` (${plain(note)})` : ""}`;
}

function showRules({ rules, traps }) {
  fill(byId("rules-rows"), rules, () => {
    const item = html("li");
    return [item, (rule) => setText(item, ruleText(rule))];
  });
  setText(byId("rules-none"), rules.length ? "" : "No rules: every URL may be fetched.");
  setText(byId("rules-traps"), traps.on === false ? "Spider traps are not looked for." : "URLs that look like spider traps are held back.");
}

// The crawls that the token is for, to choose from if there are others than the one that is shown. The name of one that
// was moved leads to the other one.
function showCrawls({ crawls, default: named }) {
  const names = crawls.filter((one) => !one.moved_to).map((one) => one.name);
  const moves = new Map(crawls.map((one) => [one.name, one.moved_to]));
  const leadsTo = (name) => (moves.get(name) ? leadsTo(moves.get(name)) : name);
  const [own, shown] = [leadsTo(named), leadsTo(crawl || named)];
  byId("crawl-form").hidden = !names.some((name) => name !== shown);
  const choice = byId("crawl");
  const options = [...new Set([shown, ...names])].sort();
  if (options.join() !== [...choice.options].map((option) => option.value).join()) {
    choice.replaceChildren(...options.map((name) => html("option", { value: name }, plain(name))));
    choice.value = shown;
  }
  choice.onchange = () => goTo(choice.value === own ? "" : choice.value);
}

const goTo = (name) => location.assign(location.pathname + (name && `?crawl=${encodeURIComponent(name)}`));

// Goes to a crawl that the token is for, if it is not for the service's own; returns whether there is one.
async function wentToAnother() {
  if (crawl || token.get() === null) return false;
  const { crawls, default: own } = await ask(CRAWLS).catch(() => ({ crawls: [] }));
  const other = crawls.find((one) => one.name !== own);
  if (!other || crawls.some((one) => one.name === own)) return false;
  goTo(other.name);
  return true;
}

// Goes to a crawl that the token is for, or else asks for a token. `why`: what a token that is known may not do.
async function tokenRefused(why) {
  if (!why || !(await wentToAnother())) wantToken(why);
}

const PANELS = [
  { id: "stats", path: "v1/stats", every: 2, show: showStats },
  { id: "top", path: "v1/top", with: { n: ROWS }, every: 5, show: showTop },
  { id: "next", path: "v1/frontier", with: { n: ROWS }, every: 5, show: showNext },
  { id: "hosts", path: "v1/hosts", with: { n: ROWS }, every: 10, show: showHosts },
  { id: "curve", path: "v1/series", with: { n: 2 }, every: 5, show: showSeries },
  { id: "dead", path: "v1/dead-letters", with: { n: LETTERS }, every: 10, show: showDead },
  { id: "classes", path: "v1/classes", every: 30, show: showClasses },
  { id: "rules", path: "v1/rules", every: 30, show: showRules },
  { id: "local", path: "v1/local", every: 10, show: (answer) => showDomains(answer, { showRows, showRowsOf, cell, pageOf, share }) },
  { id: "crawl", path: CRAWLS, every: 30, show: showCrawls },
  { id: "audit", path: "v1/audit", every: 30, show: showAudit },
].map((panel) => ({ ...panel, due: 0, busy: false, came: null, age: 0 }));
const STATS = PANELS[0];
const TOP = PANELS[1];
const CHOICE = PANELS.find((panel) => panel.id === "crawl");
const AUDIT = PANELS.at(-1);

async function refresh(panel) {
  panel.busy = true;
  const began = clock();
  try {
    const answer = await ask(panel.path, panel.with);
    panel.came = clock();
    panel.age = answer.age;
    panel.due = panel.came + panel.every;
    if (panel === AUDIT && panel.came - began > AUDIT_COSTLY_SECONDS) panel.due = Infinity;
    back();
    if (panel === STATS) noCrawl(false);
    panel.show(answer);
  } catch (error) {
    if (!(error instanceof Trouble)) throw error;
    panel.due = clock() + Math.max(panel.every, error.retrySeconds);
    if (error.kind === "token") await tokenRefused(error.message);
    else if (error.kind === "away" && panel === STATS) lost(error);
    else {
      if (panel === STATS && error.kind === "missing") noCrawl(true);
      if (error.kind === "missing") panel.due = clock() + MISSING_SECONDS;
      // One call that fails is that part's trouble; whether the service is away the counters tell.
      if (panel !== STATS) STATS.due = 0;
      byId("audit").dataset.conserved = panel === AUDIT ? "wait" : byId("audit").dataset.conserved;
      setText(byId(`${panel.id}-none`) ?? byId("verdict"), error.kind === "missing" ? MISSING : plain(error.message));
    }
  } finally {
    panel.busy = false;
    tell();
  }
}

// --- When there is no answer -----------------------------------------------------------------------------------------

function lost(trouble) {
  const tries = away ? away.tries + 1 : 0;
  const wait = Math.max(trouble.retrySeconds, RETRY_SECONDS[Math.min(tries, RETRY_SECONDS.length - 1)]);
  away = { at: away?.at ?? Date.now() / 1000, tries, retryAt: clock() + wait };
  setText(byId("trouble-text"), plain(trouble.message));
  byId("trouble").hidden = false;
}

let isNone = false; // Whether there is no crawl of the name in the address.

function noCrawl(none) {
  isNone = none;
  if (none) setText(byId("where"), `There is no crawl ${plain(crawl)} here: it was removed, or never made.`);
}

function back() {
  if (tokenWanted) {
    tokenWanted = false;
    byId("token-form").hidden = true;
  }
  if (!away) return;
  away = null;
  byId("trouble").hidden = true;
  setText(byId("trouble-text"), "");
  for (const panel of PANELS) if (panel.due !== Infinity) panel.due = 0;
}

// Asks for a token; `why` says what the given one lacks, and is empty where it was none of this service.
function wantToken(why) {
  byId("forget").hidden = true;
  if (!tokenWanted) {
    tokenWanted = true;
    const wrong = token.get() !== null;
    token.forget();
    byId("token-form").hidden = false;
    setText(byId("token-why"), wrong ? (why ? `That token can’t be used on this page: ${plain(why)}.` : "The service did not take that token.") : "This service wants a token.");
    if (wrong || document.activeElement === document.body) byId("token").focus();
  }
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = byId("token").value.trim();
  if (!/^[\x21-\x7e]+$/.test(given)) {
    setText(byId("token-why"), "A token has no spaces and only ASCII characters.");
    return;
  }
  token.set(given);
  byId("token").value = "";
  byId("forget").hidden = false;
  setText(byId("token-why"), "");
  tokenWanted = false;
  for (const panel of PANELS) panel.due = 0;
  refresh(STATS).then(() => {
    byId("token-form").hidden = !tokenWanted;
    if (!tokenWanted) byId("main").focus();
    beat();
    showView(view.read(), true);
  });
});

byId("forget").addEventListener("click", () => {
  token.forget();
  location.reload(); // So that nothing that it brought stays.
});

byId("retry").addEventListener("click", () => {
  if (away) away.retryAt = 0;
  beat();
});

byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").dataset.on = String(paused);
  setText(byId("pause"), paused ? "Resume" : "Pause");
  tell();
  beat();
});

byId("recount").addEventListener("click", () => {
  AUDIT.due = 0;
  if (!AUDIT.busy) refresh(AUDIT);
});

// --- One beat --------------------------------------------------------------------------------------------------------

function beat() {
  tell();
  if (document.hidden || paused || tokenWanted) return;
  const now = clock();
  if (away) {
    if (now >= away.retryAt && !STATS.busy) refresh(STATS);
    return;
  }
  if (STATS.came === null) {
    if (!STATS.busy && now >= STATS.due) refresh(STATS); // The first alone: it may say that a token is wanted.
    if (isNone && !CHOICE.busy && now >= CHOICE.due) refresh(CHOICE);
    return;
  }
  for (const panel of PANELS) if (!panel.busy && now >= panel.due) refresh(panel);
}

// Says how old what is shown is, and how things stand.
function tell() {
  const now = clock();
  const ageOf = (panel) => panel.age + now - panel.came;
  for (const panel of PANELS) {
    const place = byId(`${panel.id}-age`);
    if (place && panel.came !== null) {
      setText(place, `${span(ageOf(panel))} old`);
      place.dataset.old = String(panel.due !== Infinity && ageOf(panel) > 3 * panel.every + 5);
    }
  }
  if (found.came !== null) setText(byId("page-age"), `${span(found.age + now - found.came)} old`);
  const state = tokenWanted ? "token" : away ? "away" : isNone ? "none" : paused ? "paused" : STATS.came === null ? "wait" : warnings.length ? "warns" : "live";
  const said = { token: "Token wanted", away: "No answer", none: "No such crawl", paused: "Paused", wait: "Connecting", live: "Live", warns: "Live, and something needs care" }[state];
  byId("main").hidden = tokenWanted && STATS.came === null; // There is nothing to show yet.
  byId("warnings").hidden = state !== "warns";
  setSentence(byId("warnings"), warnings.map((text) => `${plain(text).replace(/\.$/, "")}.`).join(" "));
  byId("state").dataset.state = state;
  setText(byId("state-text"), STATS.came === null || ["live", "warns"].includes(state) && ageOf(STATS) < 5 ? said : `${said}, numbers are ${span(ageOf(STATS))} old`);
  if (away) {
    const left = Math.ceil(away.retryAt - now);
    setText(byId("trouble-next"), `Since ${timeOf(away.at)}. ${paused ? "Paused." : left > 0 ? `Asking again in ${left} s.` : "Asking again."}`);
  }
}

document.addEventListener("visibilitychange", () => {
  clearInterval(beating);
  if (document.hidden) return;
  samples.length = 0; // The rate is that of time watched.
  beating = setInterval(beat, BEAT_MS);
  beat();
});

// --- One page --------------------------------------------------------------------------------------------------------

const found = { came: null, age: 0, turn: 0, next: null };

function lookUp(url) {
  view.write({ page: url, find: "" });
  return showFound(url);
}

async function showFound(url, { scroll = true } = {}) {
  const turn = ++found.turn;
  byId("url").value = url;
  const said = byId("page-said");
  setText(said, "Looking …");
  byId("matches").hidden = true;
  try {
    const [page, history, why] = await Promise.all([
      ask("v1/importance", { url, ...past() }),
      ask("v1/history", { url }),
      ask("v1/explain", { url, ...past() }).catch((error) => {
        if (error.kind === "missing" || error.kind === "refused") return error;
        throw error;
      }),
    ]);
    if (turn !== found.turn) return;
    [found.came, found.age] = [clock(), page.age];
    back();
    byId("page-found").hidden = false;
    showPage(page, history, why);
    setText(said, "");
    if (!scroll) return;
    byId("page-title").focus({ preventScroll: true });
    byId("page").scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  } catch (error) {
    if (!(error instanceof Trouble)) throw error;
    if (turn !== found.turn) return;
    found.came = null;
    setText(byId("page-age"), "");
    byId("page-found").hidden = true;
    setText(said, plain(error.message));
    if (error.kind === "away") STATS.due = 0;
    if (error.kind === "token") await tokenRefused(error.message);
  }
  tell();
}

function showPage(page, { measures }, why) {
  byId("page-url").replaceChildren(html("bdi", {}, ...withBreaks(plain(page.url))), " ", linkOut(page.url) ?? "");
  const facts = [
    ["importance", page.gone ? "0, the page is gone" : three(page.importance)],
    ["rank", page.rank ? whole(page.rank) : "–"],
    ["reads", whole(page.reads)],
    ["cash, grains", whole(page.cash)],
    ["last fetched", page.last_fetched_at ? momentOf(page.last_fetched_at) : "never"],
    ...(page.class ? [["class", plain(page.class)]] : []),
    ["policy", page.window === null ? page.policy : `${page.policy}, window ${page.window}`],
  ];
  byId("page-facts").replaceChildren(...facts.map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, value))));
  const values = measures.map(({ cash, fetched_at: at }) => ({ value: Number(cash), label: short(cash), under: [dayOf(at), timeOf(at)] }));
  bars(byId("history"), {
    values: [...values, { value: Number(page.cash), label: short(page.cash), under: ["now", "unspent"], kind: "open" }],
    about: `Grains that each of the last ${values.length} reads found: ${values.map(({ label, under }) => `${label} on ${under.join(" ")}`).join("; ") || "none"}. Unspent now: ${short(page.cash)}.`,
  });
  if (why instanceof Trouble) {
    byId("why").replaceChildren(html("p", { class: "none" }, why.kind === "missing" ? MISSING : plain(why.message)));
  } else {
    byId("why").replaceChildren(reasons(why) ?? tree(why));
  }
}

// --- Pages by a part of their URL ------------------------------------------------------------------------------------

async function find(text, after = null) {
  const turn = ++found.turn;
  byId("url").value = text;
  byId("page-found").hidden = true;
  found.came = null;
  setText(byId("page-age"), "");
  setText(byId("page-said"), "Searching …");
  byId("look-on").hidden = true;
  try {
    const answer = await ask("v1/search", { text, n: ROWS, ...(after ? { after } : {}) });
    if (turn !== found.turn) return;
    back();
    bestMatch = answer.pages[0]?.importance || 1;
    showRowsOf(byId("matches-rows"), answer.pages, () => [pageOf(), share(() => bestMatch)]);
    byId("matches").hidden = false;
    found.next = answer.next ?? null;
    byId("look-on").hidden = found.next === null;
    const seen = `Looked at ${whole(answer.looked_at)} of ${whole(answer.known_pages)} pages${after ? " more" : ""}`;
    const many = answer.found > answer.pages.length ? `; these are the ${whole(answer.pages.length)} most important` : "";
    const count = answer.found === 1 ? "one URL has" : answer.found ? `${whole(answer.found)} URLs have` : "no URL has";
    setText(byId("page-said"), `${seen}: ${count} “${plain(text)}” in ${answer.found > 1 ? "them" : "it"}${many}.`);
  } catch (error) {
    if (!(error instanceof Trouble)) throw error;
    if (turn !== found.turn) return;
    byId("matches").hidden = true;
    setText(byId("page-said"), plain(error.message));
    if (error.kind === "away") STATS.due = 0;
    if (error.kind === "token") await tokenRefused(error.message);
  }
  tell();
}

let bestMatch = 1;
byId("look-on").addEventListener("click", () => find(byId("url").value.trim(), found.next));

byId("page-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = byId("url").value.trim();
  if (ofTheWeb(text)) lookUp(text);
  else if (text) {
    view.write({ find: text, page: "" });
    find(text);
  }
});

// --- How much of the past counts -------------------------------------------------------------------------------------

function past() {
  const [policy, window] = [byId("policy").value, byId("window").value.trim()];
  return { ...(policy ? { policy } : {}), ...(window && !WINDOWLESS.includes(policy) ? { window } : {}) };
}

function showPast() {
  byId("window").disabled = WINDOWLESS.includes(byId("policy").value);
  TOP.with = { n: ROWS, ...past() };
  TOP.due = 0;
}

byId("past-form").addEventListener("submit", (event) => event.preventDefault());
byId("past-form").addEventListener("change", () => {
  view.write({ policy: byId("policy").value, window: byId("window").value.trim() });
  showPast();
  const { page } = view.read();
  if (page && !byId("page-found").hidden) showFound(page, { scroll: false });
  beat();
});

// --- What comes to a domain ------------------------------------------------------------------------------------------

let bestInflow = 1;
async function showInflow(domain) {
  byId("domain").value = domain;
  const said = byId("inflow-said");
  setText(said, "Looking …");
  try {
    const answer = await ask("v1/inflow", { domain, n: INFLOW_PAGES });
    const linked = answer.pages.filter(({ inflow }) => inflow > 0).sort((a, b) => b.inflow - a.inflow);
    const pages = linked.slice(0, ROWS).map(({ url, inflow }) => ({ url, importance: inflow }));
    bestInflow = pages[0]?.importance || 1;
    byId("inflow").hidden = !pages.length;
    const sum = answer.pages.reduce((all, { inflow }) => all + inflow, 0);
    const of = answer.next ? `its first ${whole(answer.pages.length)} pages` : `its ${whole(answer.pages.length)} pages`;
    showRowsOf(byId("inflow-rows"), pages, () => [pageOf(), share(() => bestInflow)]);
    setText(said, answer.pages.length
      ? `Links from other domains brought ${percent(sum)} of all cash to ${of}; ${whole(linked.length)} of them got some. Pages outside the domain have ${percent(answer.outside_mass)} of all importance.`
      : "No page of this domain is known.");
  } catch (error) {
    if (!(error instanceof Trouble)) throw error;
    byId("inflow").hidden = true;
    setText(said, plain(error.message));
    if (error.kind === "away") STATS.due = 0;
    if (error.kind === "token") await tokenRefused(error.message);
  }
}

byId("inflow-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const domain = byId("domain").value.trim();
  view.write({ domain });
  if (domain) showInflow(domain);
});

// --- A view that was shared ------------------------------------------------------------------------------------------

function showView({ page, find: text, policy, window, domain }, scroll = false) {
  if (byId("policy").value !== policy || byId("window").value !== window) {
    [byId("policy").value, byId("window").value] = [policy, window];
    showPast();
  }
  if (page) showFound(page, { scroll });
  else if (text) find(text);
  else {
    found.turn++;
    found.came = null;
    for (const id of ["page-found", "matches"]) byId(id).hidden = true;
    for (const id of ["page-age", "page-said"]) setText(byId(id), "");
  }
  if (domain) showInflow(domain);
}

view.whenChanged(showView);

byId("forget").hidden = token.get() === null;
if (!document.hidden) beating = setInterval(beat, BEAT_MS);
beat();
showView(view.read(), true);
