// Time series of the values that this page has got since it was opened, and their charts.

import { el } from "./dom.js";
import { grown, quantile, summed } from "./quantiles.js";

const MAX_VALUES = 90;
const MIN_SHOWN = 30;
const series = new Map();
let last = null;

function note(name, value) {
  if (!series.has(name)) series.set(name, []);
  const values = series.get(name);
  values.push(Number.isFinite(value) ? value : null);
  if (values.length > MAX_VALUES) values.shift();
}

// The last value of a series; NaN: there is none.
export function latest(name) {
  return series.get(name)?.at(-1) ?? NaN;
}

export function remember(name, value) {
  note(name, value);
}

const TIMES = ["adds", "reads", "commits"];
const RATES = { added_bytes: "writes", added_batches: "batches", read_batches: "reads" };

// How many bookies the totals cover, in words; empty: all registered ones.
let share = "";
export function ofWhom() {
  return share;
}

// Add an overview to the series: counters become rates. An overview seen before adds nothing.
export function take(overview) {
  if (overview.numbers_at_ms === null || (last !== null && overview.numbers_at_ms <= last.numbers_at_ms)) return;
  const before = last;
  last = overview;
  const there = overview.bookies.filter((bookie) => bookie.mode !== "away");
  const telling = there.filter((bookie) => bookie.numbers !== null).length;
  share = telling < there.length ? `of ${telling} of ${there.length} bookies` : "";
  if (before === null) return;
  const known = new Map(before.bookies.map((bookie) => [bookie.bookie_id, bookie]));
  // NaN while no value is known, which is not the same as 0.
  const totals = { writes: NaN, batches: NaN, reads: NaN };
  const took = Object.fromEntries(TIMES.map((name) => [name, []]));
  for (const bookie of overview.bookies) {
    const now = bookie.numbers;
    const earlier = known.get(bookie.bookie_id);
    const then = earlier?.numbers;
    const elapsed = (bookie.numbers_at_ms - earlier?.numbers_at_ms) / 1000;
    const change = (name) => (now && then && elapsed > 0 && now[name] >= then[name] ? now[name] - then[name] : NaN);
    for (const [counter, name] of Object.entries(RATES)) {
      const value = change(counter) / elapsed;
      note(`${bookie.bookie_id}/${name}`, value);
      if (Number.isFinite(value)) totals[name] = (totals[name] || 0) + value;
    }
    for (const name of TIMES) {
      const counts = grown(earlier?.times?.[name], bookie.times?.[name]);
      noteTimes(`${bookie.bookie_id}/${name}`, counts);
      took[name].push(counts);
    }
  }
  for (const name of Object.values(RATES)) note(`all/${name}`, totals[name]);
  for (const name of TIMES) noteTimes(`all/${name}`, summed(took[name]));
}

// Median and 99th percentile in milliseconds.
function noteTimes(name, counts) {
  note(`${name}/p50`, quantile(counts, 0.5) * 1000);
  note(`${name}/p99`, quantile(counts, 0.99) * 1000);
}

// A line chart of a series, the newest value at the right, with fainter series on the same scale. Unknown values are
// gaps.
export function line(name, label, { width = 160, height = 34, fainter = [] } = {}) {
  const known = [name, ...fainter].flatMap((each) => series.get(each) ?? []).filter((value) => value !== null);
  const most = Math.max(...known, 1e-9);
  const drawn = (each, kind) => el("path", { class: kind, d: path(series.get(each) ?? [], most, width, height) || null });
  return el("svg", { class: "line", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, preserveAspectRatio: "none" },
    el("path", { class: "floor", d: `M0 ${height - 1}H${width}` }), fainter.map((each) => drawn(each, "faint")), drawn(name, null));
}

function path(values, most, width, height) {
  const span = Math.max(values.length, MIN_SHOWN) - 1;
  const place = (value, at) => [
    width - ((values.length - 1 - at) * width) / span, height - 2 - (value / most) * (height - 4),
  ];
  let found = "";
  let drawing = false;
  values.forEach((value, at) => {
    if (value !== null) found += `${drawing ? "L" : "M"}${place(value, at).map((part) => part.toFixed(1)).join(" ")}`;
    drawing = value !== null;
  });
  return found;
}
