// What this page has seen since it was opened: numbers over time, and lines drawn of them.

import { el } from "./dom.js";

const MOST = 90;
const LEAST_SHOWN = 30;
const series = new Map();
let last = null;

function note(name, value) {
  if (!series.has(name)) series.set(name, []);
  const values = series.get(name);
  values.push(Number.isFinite(value) ? value : null);
  if (values.length > MOST) values.shift();
}

// The value that was noted last; NaN: there is none.
export function latest(name) {
  return series.get(name)?.at(-1) ?? NaN;
}

export function remember(name, value) {
  note(name, value);
}

const RATES = { added_bytes: "writes", added_batches: "batches", read_batches: "reads" };

// Take an overview: counters become rates. One that was seen already adds nothing.
export function take(overview) {
  if (last !== null && overview.at_ms <= last.at_ms) return;
  const before = last;
  last = overview;
  if (before === null) return;
  const elapsed = (overview.at_ms - before.at_ms) / 1000;
  const known = new Map(before.bookies.map((bookie) => [bookie.bookie_id, bookie.numbers]));
  const totals = { writes: 0, batches: 0, reads: 0, commits: 0, commit_seconds: 0 };
  for (const bookie of overview.bookies) {
    const now = bookie.numbers;
    const then = known.get(bookie.bookie_id);
    const change = (name) => (now && then && now[name] >= then[name] ? now[name] - then[name] : NaN);
    for (const [counter, name] of Object.entries(RATES)) {
      const value = change(counter) / elapsed;
      note(`${bookie.bookie_id}/${name}`, value);
      totals[name] += value || 0;
    }
    const commits = change("commits");
    note(`${bookie.bookie_id}/latency`, commits > 0 ? (change("commit_seconds") / commits) * 1000 : NaN);
    totals.commits += commits || 0;
    totals.commit_seconds += change("commit_seconds") || 0;
  }
  for (const name of Object.values(RATES)) note(`all/${name}`, totals[name]);
  note("all/latency", totals.commits ? (totals.commit_seconds / totals.commits) * 1000 : NaN);
}

// A line of a series, its newest value at the right. What was not known is a gap.
export function line(name, label, { width = 160, height = 34 } = {}) {
  const values = series.get(name) ?? [];
  const known = values.filter((value) => value !== null);
  const most = Math.max(...known, 1e-9);
  const span = Math.max(values.length, LEAST_SHOWN) - 1;
  const place = (value, at) => [
    width - ((values.length - 1 - at) * width) / span, height - 2 - (value / most) * (height - 4),
  ];
  let path = "";
  let drawing = false;
  values.forEach((value, at) => {
    if (value !== null) path += `${drawing ? "L" : "M"}${place(value, at).map((part) => part.toFixed(1)).join(" ")}`;
    drawing = value !== null;
  });
  return el("svg", { class: "line", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, preserveAspectRatio: "none" },
    el("path", { class: "floor", d: `M0 ${height - 1}H${width}` }), path && el("path", { d: path }));
}
