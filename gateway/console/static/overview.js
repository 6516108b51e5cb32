// Views: the overview of the cluster, and one bookie.

import { get, post } from "./api.js";
import { directories, freeOf, meters } from "./disks.js";
import { card, el, facts, pill, table } from "./dom.js";
import { bytes, capital, count, many, milliseconds, moment, percent, rate, seconds } from "./format.js";
import { latest, line, ofWhom, take } from "./samples.js";

const KINDS = { writable: "good", "read-only": "warn", draining: "warn", away: "bad", "no answer": "bad" };

export async function overview(_parts, _query, _confirm, age) {
  const found = await get("overview");
  age.note(found);
  const title = el("h1", { class: "hidden", tabindex: "-1" }, "Overview");
  if (found.at_ms === null) return [title, el("p", { class: "quiet" }, "The cluster is being polled for the first time.")];
  take(found);
  return [
    title,
    health(found),
    tiles(found),
    card("Bookies", bookies(found.bookies)),
    card("Diagnosis", diagnosis(found.diagnosis)),
    el("div", { class: "columns" }, card("Copies", copies(found)), card("Archive", archive(found)), card("Ledgers", ledgers(found))),
  ];
}

// A cluster is not shown as healthy before its ledgers are counted: the census may find problems.
function health({ healthy, problems }) {
  const verdict = problems.length ? many(problems.length, "problem") : healthy ? "Healthy" : "No problem yet: the ledgers are not counted";
  return el("section", { class: `health ${problems.length ? "bad" : healthy ? "good" : ""}`, "aria-label": "Health" },
    el("strong", {}, verdict),
    el("ul", {}, problems.map((problem) => el("li", {}, problem))));
}

// The verdict, each finding with its evidence, and the processes that do not respond.
function diagnosis(found) {
  const silent = Object.entries(found.silent);
  const columns = [
    ["Finding", (row) => pill(row.cause, HEALTHY.has(row.cause) ? "good" : row.decides ? "bad" : "warn")],
    ["Process", (row) => row.process || "–", "name"],
    ["Evidence", (row) => el("ul", { class: "evidence" }, row.evidence.map((each) =>
      el("li", { class: !HEALTHY.has(row.cause) && each.above !== null && each.value >= each.above ? "above" : null }, each.told)))],
  ];
  return [
    el("p", { class: "diagnosis" }, found.sentence),
    found.verdict !== null && el("p", { class: "quiet" },
      `${found.processes.length === 1 ? "1 process" : `${count(found.processes.length)} processes`}, watched for ${seconds(found.seconds)}, ${seconds(found.age_s)} ago`),
    found.why && el("p", { class: "error" }, `The last poll failed: ${found.why}`),
    silent.length > 0 && el("ul", { class: "silent" }, silent.map(([name, why]) => el("li", {}, `${name} is silent: ${why}`))),
    found.findings.length > 0 && table("Findings", columns, found.findings.map((row) => ({ ...row, key: `${row.cause} ${row.process}` })), ""),
  ];
}

const HEALTHY = new Set(["client-bound", "idle"]);

// Rates and latencies of one bookie.
function now(id) {
  const at = (name) => latest(`${id}/${name}`);
  return el("div", { class: "tiles" },
    tile("Writes", perSecond(bytes, `${id}/writes`), `${rate(at("batches"))} batches/s`, line(`${id}/writes`, "Bytes written per second")),
    tile("Reads", perSecond(rate, `${id}/reads`), "batches", line(`${id}/reads`, "Batches read per second")),
    latency("Write latency", `${id}/adds`, "Time until a batch is durable"),
    latency("Read latency", `${id}/reads`, "Time of a read"),
    latency("Durable write", `${id}/commits`, "Time of a group commit to the journal"));
}

function perSecond(shown, name) {
  const value = latest(name);
  return Number.isFinite(value) ? `${shown(value)}/s` : "–";
}

function tiles(found) {
  const short = found.copies.under_replicated;
  return el("div", { class: "tiles" },
    tile("Writes", perSecond(bytes, "all/writes"), `${rate(latest("all/batches"))} batches/s ${ofWhom()}`, line("all/writes", "Bytes written per second")),
    tile("Reads", perSecond(rate, "all/reads"), `batches ${ofWhom()}`, line("all/reads", "Batches read per second")),
    latency("Write latency", "all/adds", "Time until a batch is durable on a bookie"),
    latency("Read latency", "all/reads", "Time that a bookie takes for a read"),
    tile("Under-replicated", short === null ? "–" : count(short), "ledgers lack good copies", null, short ? "bad" : ""));
}

// The large number is the median.
function latency(name, of, label) {
  const [half, most] = [`${of}/p50`, `${of}/p99`];
  const note = Number.isFinite(latest(half)) ? `median; 99 % in ${milliseconds(latest(most))}` : "none at the moment";
  return tile(name, milliseconds(latest(half)), note, line(half, label, { fainter: [most] }));
}

function tile(name, value, note, drawn, kind = "") {
  return el("section", { class: `tile ${kind}` }, el("h2", {}, name), el("p", { class: "value" }, value), el("p", { class: "quiet" }, note), drawn);
}

function bookies(rows) {
  const columns = [
    ["Bookie", (row) => el("a", { href: `#/bookies/${encodeURIComponent(row.bookie_id)}` }, row.bookie_id)],
    ["Mode", (row) => pill(row.mode, KINDS[row.mode] ?? "")],
    ["Rack", (row) => row.rack || "–"],
    ["Disk", meters],
    ["Free", freeOf, "number"],
    ["Writes", (row) => drawn(row, "writes", perSecond(bytes, `${row.bookie_id}/writes`)), "number"],
    ["Write latency (p99)", (row) => drawn(row, "adds/p99", milliseconds(latest(`${row.bookie_id}/adds/p99`))), "number"],
    ["Ledgers", (row) => count(row.ledgers ?? NaN), "number"],
    ["Damaged", (row) => count(row.damaged ?? NaN), "number"],
  ];
  return table("Bookies", columns, rows.map((row) => ({ ...row, key: row.bookie_id })), "There is no bookie.");
}

function drawn(row, name, value) {
  if (!row.numbers && row.mode !== "away" && name === "writes") {
    return el("span", { class: "quiet", title: row.silent || null }, "does not report metrics");
  }
  return el("span", { class: "drawn" }, row.numbers ? line(`${row.bookie_id}/${name}`, `${name.replace("/", ", ")} of ${row.bookie_id}`, { width: 80, height: 22 }) : null, el("span", {}, row.numbers ? value : "–"));
}

const ACTIONS = {
  "read-only": ["Read-only", "It accepts no more writes. It keeps its data and serves readers."],
  writable: ["Writable", "It accepts writes again."],
  drain: ["Drain", "It accepts no more writes, and the repair copies its data to other bookies, until it may be switched off."],
  undrain: ["Undrain", "It keeps the data it still has, and accepts writes again."],
};

function actions(row, confirm) {
  if (row.mode === "away" && row.wanted === "normal") return null;
  const offered = { normal: ["read-only", "drain"], read_only: ["writable"], draining: ["undrain"] }[row.wanted] ?? [];
  return el("span", { class: "buttons" }, offered.map((mode) => {
    const [name, text] = ACTIONS[mode];
    return el("button", {
      type: "button",
      "aria-label": `${name} ${row.bookie_id}`,
      onclick: () => confirm(`${name}: ${row.bookie_id}`, text, name, () => post(`bookies/${encodeURIComponent(row.bookie_id)}/${mode}`)),
    }, name);
  }));
}

// State of the auditor in words, with its colour.
export function audits(auditor) {
  const who = auditor?.who ?? "an unknown process";
  switch (auditor?.state) {
    case "running": return [`running at ${who}`, "good"];
    case "silent": return [`silent: ${who}`, "bad"];
    case "nobody": return ["no auditor", "warn"];
    case "unreadable": return [`auditor not known: ${auditor.why}`, "bad"];
    default: return ["not known yet", ""];
  }
}

function copies({ copies: found, auditor }) {
  return facts([
    ["Too few good copies", found.under_replicated === null ? "not audited yet" : many(found.under_replicated, "ledger")],
    ["Audited", found.audited_s_ago === null ? "never" : `${seconds(found.audited_s_ago)} ago`],
    ["Repair tasks", el("a", { href: "#/maintenance" }, count(found.tasks))],
    ["Repair", found.paused_since_ms === null ? pill(...audits(auditor)) : `paused since ${moment(found.paused_since_ms)}`],
  ]);
}

function archive(found) {
  if (found.archive === null) return el("p", { class: "quiet" }, "There is no archive.");
  const round = found.offload;
  const failed = round.failures ? `${many(round.failures, "failure")}: ${round.last_error}` : "none";
  return [
    facts([
      ["Archived", many(found.archive.ledgers ?? NaN, "ledger")],
      ["Only in the archive", many(found.archive.released ?? NaN, "ledger")],
      ["Waiting", bytes(found.archive.waiting_bytes ?? NaN)],
      ["Last pass", round.at_ms ? `${seconds((found.at_ms - round.at_ms) / 1000)} ago` : "never"],
      ["Failures", failed],
    ]),
    el("p", { class: "quiet path" }, found.archive.url),
  ];
}

function ledgers({ ledgers: found, ledgers_age_ms: age, ledgers_why: why }) {
  if (found === null) return el("p", { class: "quiet" }, why ? `Not counted: ${why}` : "They are being counted for the first time.");
  const states = Object.entries(found).filter(([name, value]) => Number.isFinite(value) && !["total", "unreadable"].includes(name));
  return facts([
    ["All", el("a", { href: "#/ledgers" }, count(found.total))],
    ...states.map(([name, value]) => [capital(name.replaceAll("_", " ")), count(value)]),
    ["Unreadable", count(found.unreadable)],
    ["Counted", why ? `${seconds(age / 1000)} ago; since then: ${why}` : `${seconds(age / 1000)} ago`],
  ]);
}

// A link to the bookie's own HTTP endpoint, with the protocol of this page.
function own(address) {
  return address ? el("a", { href: `${location.protocol}//${address}/api/v1/bookie/state`, rel: "noreferrer" }, address) : "–";
}

export async function bookie(parts, _query, confirm, age) {
  const [found, all] = await Promise.all([get(`bookies/${encodeURIComponent(parts[0])}`), get("overview")]);
  age.note(found);
  take(all);
  return [
    el("p", { class: "crumbs" }, el("a", { href: "#/" }, "Overview"), " / Bookies"),
    el("div", { class: "title" }, el("h1", { tabindex: "-1" }, found.bookie_id), pill(found.mode, KINDS[found.mode] ?? ""), actions(found, confirm)),
    now(found.bookie_id),
    card("Details", facts([
      ["Address", found.address], ["HTTP", own(found.http_address)], ["Rack", found.rack || "–"],
      ["Running for", seconds(found.uptime_seconds ?? NaN)], ["Wanted mode", found.wanted.replaceAll("_", " ")],
    ])),
    card("Directories and their disks", directories(found)),
    card("Data", facts([
      ["Ledgers that name it", count(found.named_by ?? NaN)], ["Open", count(found.growing ?? NaN)], ["First ids", found.first_ledger_ids?.join(", ") || "–"],
      ["May be switched off", found.may_be_switched_off === null ? "not known yet" : found.may_be_switched_off ? "yes" : "no"],
      ["Counted", found.ledgers_age_ms === null ? "not yet" : `${seconds(found.ledgers_age_ms / 1000)} ago`],
      ["Entry logs", `${count(found.entry_logs ?? NaN)}, ${bytes(found.log_bytes ?? NaN)}`],
      ["Journal in use", percent(found.journal_used ?? NaN)],
      ["Damaged copies", count(found.damaged ?? NaN)], ["Ledgers in limbo", count(found.in_limbo ?? NaN)],
      ["Completed scrubs", count(found.scrub_rounds ?? NaN)], ["Memory", bytes(found.numbers?.memory_bytes ?? NaN)],
    ])),
  ];
}
