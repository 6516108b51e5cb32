// The disks of a bookie and its directories. The bookie reports whether a disk is full: a full disk that has only
// journals is harmless.

import { el, pill, table } from "./dom.js";
import { bytes, percent } from "./format.js";

// For each state: its label, its colour, and the bounds of the meter's colours.
const STATES = {
  room: ["has space", "good", { low: 1, high: 1 }],
  warned: ["fills up", "warn", { low: 0.0001, high: 1 }],
  short: ["full", "bad", { low: 0.0001, high: 0.0002 }],
};
const UNKNOWN = ["not known", "bad", {}];

// Each disk once. For a bookie that reports no directories: its total.
function disks(row) {
  const named = row.directories ?? [];
  if (!named.length) {
    if (row.disk_used === null) return [];
    const state = row.disk_used >= 0.95 ? "short" : row.disk_used >= 0.85 ? "warned" : "room";
    return [{ used: row.disk_used, free: row.free_bytes, state, holds: [] }];
  }
  const found = new Map();
  for (const each of named) {
    const key = each.disk || each.path;
    const before = found.get(key);
    const holds = [...(before?.holds ?? []), `${each.role}: ${each.path}`];
    found.set(key, { used: used(each), free: free(each), state: worse(before?.state, each.state), holds });
  }
  return [...found.values()];
}

function used(directory) {
  return directory.total_bytes ? 1 - directory.free_bytes / directory.total_bytes : NaN;
}

function free(directory) {
  return directory.total_bytes ? directory.free_bytes : NaN;
}

function worse(one, other) {
  const order = ["room", "warned", "short"];
  const known = [one, other].filter((state) => state !== undefined);
  return known.find((state) => !order.includes(state)) ?? known.sort((a, b) => order.indexOf(b) - order.indexOf(a))[0];
}

function meter(fraction, state, label, holds = []) {
  const [, colour, bounds] = STATES[state] ?? UNKNOWN;
  return el("span", { class: "disk", title: holds.join("\n") || null },
    el("meter", { min: 0, max: 1, optimum: 0, ...bounds, value: Number.isFinite(fraction) ? fraction : 0, "aria-label": label }),
    el("span", { class: colour === "good" ? "" : colour }, percent(fraction)));
}

// The used part of each disk, one below the other.
export function meters(row) {
  const found = disks(row);
  const label = (at) => (found.length > 1 ? `Disk ${at + 1} of ${row.bookie_id} in use` : `Disk of ${row.bookie_id} in use`);
  return found.length ? el("span", { class: "stack" }, found.map((each, at) => meter(each.used, each.state, label(at), each.holds))) : "–";
}

// The free space of each disk, in the same order.
export function freeOf(row) {
  const found = disks(row);
  return found.length ? el("span", { class: "stack" }, found.map((each) => el("span", {}, bytes(each.free ?? NaN)))) : "–";
}

// Every directory of a bookie.
export function directories(row) {
  const columns = [
    ["Directory", (each) => each.path, "path"],
    ["Holds", (each) => each.role],
    ["Disk", (each) => each.disk || "–", "number"],
    ["In use", (each) => meter(used(each), each.state, `In use where ${each.path} lies`)],
    ["Size", (each) => bytes(each.total_bytes || NaN), "number"],
    ["Free", (each) => bytes(free(each)), "number"],
    ["State", (each) => pill(...(STATES[each.state] ?? UNKNOWN).slice(0, 2))],
  ];
  const rows = (row.directories ?? []).map((each) => ({ ...each, key: `${each.role} ${each.path}` }));
  return table("Directories", columns, rows, row.directories ? "This bookie does not report its directories." : "Not known.");
}
