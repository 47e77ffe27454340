// The progress of the crawl: pages read and to be fetched over time, when it ends, and how exact the estimates are.

import { lines, overTime } from "./draw.js";
import { brief, byId, momentOf, plain, setText, three, whole } from "./show.js";

const PAGES = [
  { name: "read", kind: "first", of: "read_pages" },
  { name: "to fetch", kind: "second", of: "to_fetch_pages" },
  { name: "failed", kind: "third", of: "failed_pages" },
  { name: "not to be fetched", kind: "fourth", of: "denied_pages" },
  { name: "outside the scope", kind: "fifth", of: "outside_pages" },
];
const ALWAYS = 2; // The first lines are drawn in any case, the others where there are such pages.

const SHORT_SECONDS = 5; // Of less than that a picture says nothing: its times would be one.
const isLong = (progress) => progress.length > 1 && progress.at(-1).time - progress[0].time >= SHORT_SECONDS;

function showPages(progress) {
  const last = progress.at(-1);
  const drawable = isLong(progress);
  const drawn = PAGES.filter(({ of }, at) => at < ALWAYS || progress.some((counts) => counts[of] > 0));
  lines(byId("progress"), {
    lines: !drawable ? [] : drawn.map(({ name, kind, of }) =>
      ({ name, kind, points: progress.map((counts) => [counts.time, counts[of]]), now: whole(last[of]) })),
    x: { ...overTime, name: "time of the last event" },
    y: { name: "pages", show: brief },
    about: last && `Pages of the crawl from ${momentOf(progress[0].time)} to ${momentOf(last.time)}; now ${drawn.map(({ name, of }) => `${whole(last[of])} ${name}`).join(", ")}.`,
    height: 230,
  });
}

function showConvergence(convergence) {
  byId("convergence").hidden = convergence.length < 2;
  const bounds = convergence.filter((point) => point.error_bound !== null);
  const unspent = convergence.filter((point) => Number(point.clock) > 0);
  const of = (point) => Number(point.unspent) / Number(point.clock);
  const [first, last] = [bounds[0], bounds.at(-1)];
  lines(byId("curve"), {
    lines: convergence.length < 2 ? [] : [
      { name: "error bound", kind: "first", points: bounds.map((point) => [point.rounds, point.error_bound]), now: last && three(last.error_bound) },
      { name: "unspent cash / clock", kind: "second", points: unspent.map((point) => [point.rounds, of(point)]), now: unspent.length ? three(of(unspent.at(-1))) : undefined },
    ],
    x: { name: "rounds", show: (x) => String(Number(x.toPrecision(3))) },
    y: { log: true, show: (y) => (y < 0.001 ? three(y).replace("1.00 × ", "") : String(Number(y.toPrecision(2)))) },
    about: last ? `The error bound over rounds: ${three(first.error_bound)} at ${three(first.rounds)}, ${three(last.error_bound)} at ${three(last.rounds)} rounds.` : "Unspent cash against the clock, over rounds.",
    height: 258,
  });
}

export function showSeries({ progress, forecast, convergence }) {
  setText(byId("forecast"), forecast ? plain(forecast.text) : "");
  showPages(progress ?? []);
  showConvergence(convergence);
  setText(byId("curve-none"), isLong(progress ?? []) ? "" : `Drawn once pages are read over ${SHORT_SECONDS} s or more.`);
}
