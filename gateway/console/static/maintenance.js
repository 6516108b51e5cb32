// View: the repair of missing copies, and the archive.

import { get, post } from "./api.js";
import { card, el, facts, pill } from "./dom.js";
import { bytes, count, many, moment, percent, seconds } from "./format.js";
import { audits } from "./overview.js";
import { tasks, underWay, whole } from "./repairing.js";

const AUDIT = "The auditor asks every bookie and reads the metadata of all ledgers. It publishes repair tasks for ledgers that lack copies.";

export async function maintenance(_parts, query, confirm, age) {
  const after = query.get("after");
  const asked = after === null ? "" : `?after=${encodeURIComponent(after)}`;
  const [auditor, repair, offload] = await Promise.all([get("auditor"), get(`repair${asked}`), get("offload")]);
  age.note(auditor);
  age.note(offload);
  const more = repair.total - repair.tasks.length;
  return [
    el("div", { class: "title" }, el("h1", { tabindex: "-1" }, "Repair and archive")),
    card("Repair", ...audited(auditor, repair, confirm)),
    card("Repair tasks", whole(repair.progress), tasks(repair.tasks), underWay(repair.tasks),
      after === null && repair.next !== null && el("p", { class: "quiet" }, more > 0 ? `and ${count(more)} more` : "and more"),
      el("p", { class: "pages" },
        after !== null && el("a", { href: "#/maintenance" }, "First tasks"),
        repair.next !== null && el("a", { href: `#/maintenance?${new URLSearchParams({ after: repair.next })}` }, "Next tasks"))),
    card("Archive", ...archived(offload)),
  ];
}

// Repair work that the auditing process has done itself.
function work(found) {
  const done = `${many(found.ledgers, "ledger")} checked, ${bytes(found.copied_bytes)} copied in ${many(found.batches, "batch", "batches")}, ${many(found.places, "ensemble position")} given to other bookies`;
  return found.not_mended ? `${done}; ${many(found.not_mended, "ledger")} not fully repaired: ${found.last_error}` : done;
}

// The audit pass that was started from this console.
function round(found) {
  if (found === null) return null;
  if (found.ended_ms === null) return `running since ${moment(found.began_ms)}`;
  if (found.why) return `failed: ${found.why}`;
  return `${many(found.found.under_replicated, "ledger")} with too few good copies, ${many(found.found.tasks_handed_out, "task")} published, ${moment(found.ended_ms)}`;
}

function audited(auditor, repair, confirm) {
  const found = auditor.last_audit;
  const paused = repair.paused_since_ms !== null;
  const [name, word, text] = paused
    ? ["Resume", "resume", "Missing copies are restored again."]
    : ["Pause", "pause", "Audits continue, but nothing is copied until the repair is resumed. Missing copies stay missing."];
  const named = (bookies) => (bookies?.length ? bookies.join(", ") : "none");
  return [
    el("div", { class: "title" },
      paused && pill(`paused since ${moment(repair.paused_since_ms)}`, "warn"),
      pill(...audits(auditor.auditor)),
      el("span", { class: "buttons" },
        el("button", {
          type: "button", onclick: () => confirm("Audit all ledgers", AUDIT, "Audit now", () => post("auditor/run")),
        }, "Audit now"),
        el("button", {
          type: "button", onclick: () => confirm(`${name} the repair`, text, name, () => post(`repair/${word}`)),
        }, name))),
    found === null ? el("p", { class: "quiet" }, "No audit has been run yet.") : facts([
      ["Last audit", `${seconds(auditor.audited_s_ago ?? NaN)} ago`],
      auditor.round !== null && ["Audit started here", round(auditor.round), "long"],
      ["Ledgers with too few good copies", count(found.under_replicated ?? NaN)],
      ["Ledgers being moved off draining bookies", count(found.moving ?? NaN)],
      ["Why", Object.entries(found.needing ?? {}).map(([why, many]) => `${why}: ${count(many)}`).join(", ") || "–"],
      ["Unavailable bookies", named(found.away)], ["Bookies declared lost", named(found.lost)],
      ["Draining bookies", named(found.draining)], ["Bookies that lost data", named(found.lost_data)],
      found.work && ["Repaired by the auditing process since its start", work(found.work), "long"],
    ].filter(Boolean)),
  ];
}

function archived(found) {
  if (found.at_ms === null) return [el("p", { class: "quiet" }, "Not known yet.")];
  if (found.archive === null) return [el("p", { class: "quiet" }, "There is no archive.")];
  const round = found.last_round;
  const waiting = round.waiting_ledgers ?? NaN;
  const there = found.archive.ledgers ?? NaN;
  // All three from the same pass of the offloader: the census is older or newer, and the sum would be wrong.
  const part = round.archived_ledgers / (round.archived_ledgers + waiting);
  return [
    Number.isFinite(part) && el("p", { class: "progress" },
      el("progress", { max: 1, value: part, "aria-label": "Part of the closed ledgers that is in the archive" }),
      ` ${percent(part)} of the closed ledgers are in the archive`),
    facts([
      ["Archived", many(there, "ledger")], ["Waiting", `${many(waiting, "ledger")}, ${bytes(round.waiting_bytes ?? NaN)}`],
      ["Oldest waiting ledger", waiting > 0 ? seconds(round.oldest_waiting_s ?? NaN) : "–"],
      ["Only in the archive", many(found.archive.released ?? NaN, "ledger")],
      ["Written since the offloader started", `${many(round.objects_written ?? NaN, "object")}, ${bytes(round.object_bytes ?? NaN)}`],
      ["Removed since then", many(round.objects_removed ?? NaN, "object")],
      ["Last pass", round.at_ms ? moment(round.at_ms) : "never"],
      ["Failures", round.failures ? `${count(round.failures)}: ${round.last_error}` : "none"],
    ]),
    el("p", { class: "quiet path" }, found.archive.url),
  ];
}
