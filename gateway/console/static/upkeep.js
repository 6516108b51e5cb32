// What looks after the cluster: the repair, which gives back copies that are missing, and the archive.

import { get, post } from "./api.js";
import { card, el, facts, pill, table } from "./dom.js";
import { bytes, count, moment, percent, seconds } from "./format.js";

const SHOWN_LEDGERS = 6;

export async function upkeep(_parts, _query, confirm) {
  const [auditor, repair, offload] = await Promise.all([get("auditor"), get("repair"), get("offload")]);
  return [
    el("div", { class: "title" }, el("h1", {}, "Repair and archive")),
    card("Repair", ...audited(auditor, repair, confirm)),
    card("Repair tasks", tasks(repair.tasks)),
    card("Archive", ...archived(offload)),
  ];
}

function audited(auditor, repair, confirm) {
  const found = auditor.last_audit;
  const paused = repair.paused_since_ms !== null;
  const [name, word, text] = paused
    ? ["Resume", "resume", "Copies that are missing are given back again."]
    : ["Pause", "pause", "The repair goes on to look, and copies nothing until it is resumed. Copies that are missing stay missing."];
  const named = (bookies) => (bookies?.length ? bookies.join(", ") : "none");
  return [
    el("div", { class: "title" },
      pill(paused ? `paused since ${moment(new Date(repair.paused_since_ms).toISOString())}` : auditor.elected ? "running" : "nobody repairs", paused || !auditor.elected ? "warn" : "good"),
      el("span", { class: "buttons" }, el("button", {
        type: "button", onclick: () => confirm(`${name} the repair`, text, name, () => post(`repair/${word}`)),
      }, name))),
    found === null ? el("p", { class: "quiet" }, "Nobody has looked for missing copies yet.") : facts([
      ["Last looked", `${seconds(auditor.audited_s_ago ?? NaN)} ago`],
      ["Ledgers with too few good copies", count(found.under_replicated ?? NaN)],
      ["Why", Object.entries(found.needing ?? {}).map(([why, many]) => `${why}: ${count(many)}`).join(", ") || "–"],
      ["Bookies that are away", named(found.away)], ["Bookies given up as lost", named(found.lost)],
      ["Bookies being emptied", named(found.draining)], ["Bookies that lost data", named(found.lost_data)],
    ]),
  ];
}

function tasks(found) {
  return table("Repair tasks", [
    ["Why", (row) => row.why],
    ["Ledgers", (row) => [
      row.ledgers.slice(0, SHOWN_LEDGERS).map((id, at) => [at ? ", " : "", el("a", { href: `#/ledgers/${id}` }, String(id))]),
      row.ledgers.length > SHOWN_LEDGERS ? ` and ${count(row.ledgers.length - SHOWN_LEDGERS)} more` : "",
    ], "name"],
    ["Worked on by", (row) => row.owner ?? "nobody yet"],
  ], found.map((row) => ({ ...row, key: row.task })), "Nothing is to be repaired.");
}

function archived(found) {
  if (found.archive === null) return [el("p", { class: "quiet" }, "There is no archive.")];
  const round = found.last_round;
  const waiting = round.waiting_ledgers ?? NaN;
  const part = found.archive.ledgers / (found.archive.ledgers + waiting);
  return [
    Number.isFinite(part) && el("p", { class: "progress" },
      el("progress", { max: 1, value: part, "aria-label": "Of the closed ledgers, those in the archive" }),
      ` ${percent(part)} of the closed ledgers are in the archive`),
    facts([
      ["Archived", `${count(found.archive.ledgers)} ledgers`], ["Waiting", `${count(waiting)} ledgers, ${bytes(found.archive.waiting_bytes)}`],
      ["Oldest that waits", waiting > 0 ? seconds(round.oldest_waiting_s ?? NaN) : "–"],
      ["In the archive alone", `${count(found.archive.released)} ledgers`],
      ["Objects written since it began", `${count(round.objects_written ?? NaN)}, ${bytes(round.object_bytes ?? NaN)}`],
      ["Objects removed since then", count(round.objects_removed ?? NaN)],
      ["Last round", round.at_ms ? moment(new Date(round.at_ms).toISOString()) : "never"],
      ["Failures", round.failures ? `${count(round.failures)}: ${round.last_error}` : "none"],
    ]),
    el("p", { class: "quiet path" }, found.archive.url),
  ];
}
