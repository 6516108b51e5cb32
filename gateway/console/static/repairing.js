// Progress of the repair: of all urgent tasks together, of each task, and of each ledger in repair.

import { el, pill, table } from "./dom.js";
import { bytes, count, many, percent, seconds } from "./format.js";

const SHOWN_LEDGERS = 6;

// The finished part: by bytes if the total is known, else by ledgers; NaN: not known.
function part(found) {
  if (found.expected_bytes) return Math.min(1, found.copied_bytes / found.expected_bytes);
  if (found.ledgers_total) return (found.ledgers_total - found.ledgers_left) / found.ledgers_total;
  return NaN;
}

function bar(value, label, kind) {
  return Number.isFinite(value) && el("progress", { class: kind, max: 1, value, "aria-label": label });
}

function copied(found) {
  return found.expected_bytes ? `${bytes(found.copied_bytes)} of about ${bytes(found.expected_bytes)}` : bytes(found.copied_bytes);
}

function ledgersDone(found) {
  return found.ledgers_total ? `${count(found.ledgers_total - found.ledgers_left)} of ${count(found.ledgers_total)}` : `${count(found.ledgers_left)} left`;
}

function rest(found) {
  return found.seconds_left === null ? "–" : `about ${seconds(found.seconds_left)}`;
}

// Progress of all urgent tasks.
export function whole(found) {
  if (!found.tasks) return null;
  const value = part(found);
  const told = [
    found.ledgers_total ? `${ledgersDone(found)} ledgers repaired` : `${many(found.ledgers_left, "ledger")} left`, `${copied(found)} copied`,
    found.bytes_per_second > 0 && `${bytes(found.bytes_per_second)}/s`, found.seconds_left !== null && `${rest(found)} left`,
    found.not_mended > 0 && `${many(found.not_mended, "ledger")} not fully repaired`, !found.complete && "of the tasks shown",
  ];
  return el("p", { class: "progress" },
    bar(value, "Finished part of the repair"), Number.isFinite(value) && el("strong", {}, percent(value)),
    el("span", {}, told.filter(Boolean).join(" · ")));
}

export function tasks(found) {
  return table("Repair tasks", [
    ["Why", (row) => (row.unreadable ? [pill("unreadable", "bad"), " ", row.unreadable] : row.why), "name"],
    ["Ledgers", (row) => [
      row.ledgers.slice(0, SHOWN_LEDGERS).map((id, at) => [at ? ", " : "", el("a", { href: `#/ledgers/${id}` }, String(id))]),
      row.ledgers.length > SHOWN_LEDGERS ? ` and ${count(row.ledgers.length - SHOWN_LEDGERS)} more` : "",
    ], "name"],
    ["Done", (row) => row.progress && ledgersDone(row.progress)],
    ["Copied", (row) => row.progress && copied(row.progress)],
    ["Rate", (row) => (row.progress?.bytes_per_second ? `${bytes(row.progress.bytes_per_second)}/s` : "–"), "number"],
    ["Left", (row) => (row.progress ? rest(row.progress) : "–")],
    ["Worked on by", (row) => (row.unreadable ? "–" : row.owner ?? "not claimed yet")],
  ], found.map((row) => ({ ...row, key: row.task })), "Nothing to repair.");
}

// Each ledger in repair.
export function underWay(found) {
  const rows = found.flatMap((task) => task.progress?.under_way ?? []);
  if (!rows.length) return null;
  return table("Ledgers in repair", [
    ["Ledger in repair", (row) => el("a", { href: `#/ledgers/${row.ledger_id}` }, String(row.ledger_id))],
    ["Ensemble positions complete", (row) => (row.places ? `${count(row.places_done)} of ${count(row.places)}` : "–")],
    ["Copied", copied],
    ["", (row) => bar(part(row), `Copied part of ledger ${row.ledger_id}`, "small")],
  ], rows.map((row) => ({ ...row, key: row.ledger_id })), "");
}
