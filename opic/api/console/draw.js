// Charts: line charts with two axes, bars, sparklines. All are SVG; the stylesheet sets colours and fonts.

import { dayOf, html, svg, timeOf } from "./show.js";

const MARGIN = { top: 10, right: 12, bottom: 34, left: 46 };

// Round steps, about so many, from a to b.
function steps(a, b, count) {
  const raw = (b - a || 1) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((each) => each * power >= raw);
  const found = [];
  for (let at = Math.ceil(a / step); at * step <= b + step / 1e6; at++) found.push(at * step);
  return found;
}

// 1, 2 and 5 times powers of ten from a to b, or only the powers where those are many.
function decades(a, b) {
  const found = [];
  const sparse = Math.log10(b / a) > 2.2;
  for (let power = Math.floor(Math.log10(a)); power <= Math.ceil(Math.log10(b)); power++) {
    for (const each of sparse ? [1] : [1, 2, 5]) {
      const at = each * 10 ** power;
      if (at >= a * 0.999 && at <= b * 1.001) found.push(at);
    }
  }
  return found;
}

// Steps of time, in seconds, that people read easily.
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

// An x axis of Unix seconds: ticks at full seconds, minutes, hours or days of this place.
export const overTime = {
  loose: true,
  ticks(a, b, width) {
    const wanted = (b - a || 1) / Math.max(2, Math.min(6, Math.floor(width / 95)));
    const step = TIME_STEPS.find((each) => each >= wanted) ?? 86400 * Math.ceil(wanted / 86400);
    const shift = 60 * new Date(a * 1000).getTimezoneOffset();
    const found = [];
    for (let at = Math.ceil((a - shift) / step) * step + shift; at <= b; at += step) found.push(at);
    this.shown = step >= 86400 ? dayOf : step >= 60 ? (at) => timeOf(at).slice(0, 5) : timeOf;
    return found.length > 1 ? found : this.shown(a) === this.shown(b) ? [b] : [a, b];
  },
  show(at) {
    return this.shown(at);
  },
};

function scale({ log }, a, b, from, to) {
  const f = log ? Math.log10 : (x) => x;
  const width = f(b) - f(a) || 1;
  return (x) => from + ((f(x) - f(a)) / width) * (to - from);
}

// Draws again whenever the place for it gets another width.
const DRAWN = new WeakMap();
const WIDTHS = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    const drawn = DRAWN.get(target);
    if (drawn && Math.abs(drawn.width - contentRect.width) >= 1) draw(target, drawn.how);
  }
});

function draw(host, how) {
  const width = Math.floor(host.clientWidth);
  if (!DRAWN.has(host)) WIDTHS.observe(host);
  DRAWN.set(host, { how, width });
  if (width > 0) host.replaceChildren(...how(width));
}

// Lines through points.
//   lines: [{ name, kind, points: [[x, y], ..] }]; kind is the class that styles it
//   x, y: { name, log, show, ticks }; a log axis passes over what is not above 0
//   about: what it shows, for whoever does not see it
export function lines(host, { lines: given, x, y, about, height = 220 }) {
  const good = ([a, b]) => Number.isFinite(a) && Number.isFinite(b) && (!x.log || a > 0) && (!y.log || b > 0);
  const drawn = given.map((line) => ({ ...line, points: line.points.filter(good) })).filter((line) => line.points.length);
  const all = drawn.flatMap((line) => line.points);
  if (!all.length) {
    DRAWN.delete(host);
    WIDTHS.unobserve(host);
    return host.replaceChildren();
  }
  const [xs, ys] = [0, 1].map((axis) => all.map((point) => point[axis]));
  const [x0, x1] = [x.log || x.loose ? Math.min(...xs) : Math.min(0, ...xs), Math.max(...xs)];
  let [y0, y1] = [y.log ? Math.min(...ys) : Math.min(0, ...ys), Math.max(...ys)];
  if (y.log) [y0, y1] = y1 / y0 < 4 ? [y0 / 2, y1 * 2] : [y0 / 1.2, y1 * 1.1];
  if (y0 === y1) y1 = y0 + 1;
  draw(host, (width) => {
    const [left, right, top, bottom] = [MARGIN.left, width - MARGIN.right, MARGIN.top, height - MARGIN.bottom];
    const [atX, atY] = [scale(x, x0, x1, left, right), scale(y, y0, y1, bottom, top)];
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": about });
    for (const tick of y.log ? decades(y0, y1) : steps(y0, y1, 4)) {
      const at = Math.round(atY(tick)) + 0.5;
      picture.append(
        svg("line", { class: "grid", x1: left, x2: right, y1: at, y2: at }),
        svg("text", { class: "tick", x: left - 8, y: at + 4, "text-anchor": "end" }, y.show(tick)));
    }
    const ticks = x.ticks?.(x0, x1, width) ?? (x.log ? decades(x0, x1) : steps(x0, x1, Math.max(2, Math.min(6, width / 90))));
    for (const tick of ticks) {
      const at = atX(tick);
      const anchor = at > right - 24 ? "end" : at < left + 12 ? "start" : "middle";
      picture.append(svg("text", { class: "tick", x: at, y: bottom + 17, "text-anchor": anchor }, x.show(tick)));
    }
    picture.append(
      svg("line", { class: "axis", x1: left, x2: right, y1: bottom + 0.5, y2: bottom + 0.5 }),
      svg("text", { class: "tick axis-name", x: right, y: height - 2, "text-anchor": "end" }, x.name));
    for (const line of drawn) {
      const path = line.points.map(([a, b], at) => `${at ? "L" : "M"}${atX(a).toFixed(1)} ${atY(b).toFixed(1)}`).join("");
      const [a, b] = line.points.at(-1);
      picture.append(
        svg("path", { class: `line ${line.kind}`, d: path }),
        svg("circle", { class: `end ${line.kind}`, cx: atX(a).toFixed(1), cy: atY(b).toFixed(1), r: 3 }));
    }
    const key = html("ul", { class: "key" }, ...drawn.map((line) =>
      html("li", { class: line.kind }, `${line.name}${line.now === undefined ? "" : `: ${line.now}`}`)));
    return [key, picture];
  });
}

// A bar for each of a few values.
//   values: [{ value, label, under: [line, ..], kind }]
export function bars(host, { values: given, about, height = 190 }) {
  draw(host, (width) => {
    const values = given.slice(-Math.max(1, Math.floor(width / 62))); // The last ones, where there is no room for all.
    const most = Math.max(...values.map(({ value }) => Math.abs(value)), 1);
    const [top, bottom] = [22, height - 40];
    const each = Math.min(110, width / values.length);
    const thick = Math.min(44, each * 0.5);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": about });
    values.forEach(({ value, label, under, kind = "" }, at) => {
      const middle = each * (at + 0.5);
      const tall = Math.max(1, (Math.abs(value) / most) * (bottom - top));
      picture.append(
        svg("rect", { class: `bar ${kind}`, x: (middle - thick / 2).toFixed(1), y: (bottom - tall).toFixed(1), width: thick.toFixed(1), height: tall.toFixed(1), rx: 2 }),
        svg("text", { class: "value", x: middle, y: bottom - tall - 7, "text-anchor": "middle" }, label),
        ...under.map((text, line) => svg("text", { class: "tick", x: middle, y: bottom + 17 + 15 * line, "text-anchor": "middle" }, text)));
    });
    picture.append(svg("line", { class: "axis", x1: 0, x2: each * values.length, y1: bottom + 0.5, y2: bottom + 0.5 }));
    return [picture];
  });
}

// A line without axes, of the last values; the eye sees rest and unrest, the number is beside it.
export function spark(host, values, most) {
  if (values.length < 2) return host.replaceChildren("\u00a0");
  const [width, height] = [120, 18];
  const top = Math.max(...values, 1e-9);
  const points = values.map((value, at) =>
    `${((at / (most - 1)) * width).toFixed(1)},${(height - 1.5 - (value / top) * (height - 3)).toFixed(1)}`);
  host.replaceChildren(svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" },
    svg("polyline", { class: "line first", points: points.join(" ") })));
}
