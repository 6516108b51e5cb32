// Ledgers, one of them with its fragments, and the copies of one entry.

import { get, remove } from "./api.js";
import { card, el, facts, pill, table } from "./dom.js";
import { bytes, count, moment } from "./format.js";

const KINDS = { open: "good", closed: "", in_recovery: "warn", unreadable: "bad" };

function state(found) {
  const shown = pill(String(found.state).replaceAll("_", " "), KINDS[found.state] ?? "");
  return found.why ? [shown, " ", el("span", { class: "quiet path" }, found.why)] : shown;
}

function named(bookies) {
  return bookies.map((name, at) => [at ? ", " : "", el("a", { href: `#/bookies/${encodeURIComponent(name)}` }, name)]);
}

// A field for a number, and where it leads.
function go(label, to) {
  return el("form", {
    class: "go",
    onsubmit: (event) => {
      event.preventDefault();
      const value = event.target.elements.id.value.trim();
      if (/^\d+$/.test(value)) location.hash = to(value);
    },
  }, el("label", {}, `${label} `, el("input", { name: "id", inputmode: "numeric", pattern: "[0-9]+", size: 12, autocomplete: "off" })),
  el("button", {}, "Show"));
}

export async function ledgers(_parts, query) {
  const after = query.get("after");
  const page = await get(`ledgers${after === null ? "" : `?after=${encodeURIComponent(after)}`}`);
  const columns = [
    ["Ledger", (row) => el("a", { href: `#/ledgers/${row.ledger_id}` }, String(row.ledger_id))],
    ["Name", (row) => row.custom?.name ?? "–", "name"],
    ["State", state, "name"],
    ["Entries", (row) => count(row.entries ?? NaN), "number"],
    ["Size", (row) => bytes(row.bytes ?? NaN), "number"],
    ["Ensemble / write / ack", (row) => (row.ensemble ? `${row.ensemble} / ${row.write_quorum} / ${row.ack_quorum}` : "–"), "number"],
    ["Fragments", (row) => count(row.fragments?.length), "number"],
    ["Archive", (row) => (row.archive ? pill(row.archive.copies_released ? "archive alone" : "archived", "") : "–")],
    ["Created", (row) => moment(row.created_at), "number"],
  ];
  return [
    el("div", { class: "title" }, el("h1", { tabindex: "-1" }, "Ledgers"), go("Ledger", (id) => `#/ledgers/${id}`)),
    el("section", { class: "card" }, table("Ledgers", columns, page.ledgers.map((row) => ({ ...row, key: row.ledger_id })), "There is no ledger.")),
    el("p", { class: "pages" },
      after !== null && el("a", { href: "#/ledgers" }, "First page"),
      page.next !== null && el("a", { href: `#/ledgers?after=${page.next}` }, "Next page")),
  ];
}

function deletion(found, confirm) {
  const name = `Ledger ${found.ledger_id}`;
  const held = found.entries === null ? "what was written to it" : found.entries === 1 ? "its one entry" : `its ${count(found.entries)} entries`;
  const where = found.archive ? "from the bookies and from the archive" : "from the bookies";
  return el("button", {
    type: "button",
    class: "danger",
    onclick: () => confirm(`Delete: ${name}`,
      `This deletes ${held}, ${where}. Nobody can bring it back. A stream that it is a part of loses those records.`, "Delete",
      async (password) => {
        await remove(`ledgers/${found.ledger_id}`, found.password ? { password } : {});
        location.hash = "#/ledgers";
      }, { password: found.password }),
  }, "Delete");
}

export async function ledger(parts, _query, confirm) {
  const id = encodeURIComponent(parts[0]);
  const found = await get(`ledgers/${id}`);
  const ends = found.fragments.slice(1).map((fragment) => fragment.first_entry_id - 1);
  const rows = found.fragments.map((fragment, at) => ({ ...fragment, key: fragment.first_entry_id, end: ends[at] ?? found.last_entry_id ?? "…" }));
  const custom = Object.entries(found.custom);
  return [
    el("p", { class: "crumbs" }, el("a", { href: "#/ledgers" }, "Ledgers"), " /"),
    el("div", { class: "title" }, el("h1", { tabindex: "-1" }, `Ledger ${found.ledger_id}`), state(found), deletion(found, confirm), go("Entry", (entry) => `#/ledgers/${found.ledger_id}/entries/${entry}`)),
    card("What it is", facts([
      ["Entries", count(found.entries ?? NaN)], ["Size", bytes(found.bytes ?? NaN)],
      ["Readers see up to", found.last_add_confirmed === null ? "–" : String(found.last_add_confirmed)],
      ["Ensemble / write / ack quorum", `${found.ensemble} / ${found.write_quorum} / ${found.ack_quorum}`],
      ["Digest", found.digest], ["Password", found.password ? "yes" : "no"], ["Created", moment(found.created_at)],
    ])),
    card("Fragments", table("Fragments", [
      ["First entry", (row) => el("a", { href: `#/ledgers/${found.ledger_id}/entries/${row.first_entry_id}` }, String(row.first_entry_id))],
      ["Last entry", (row) => String(row.end)],
      ["Bookies", (row) => named(row.bookies)],
    ], rows, "It has no fragments.")),
    found.missed.length ? card("Copies that were missed", table("Missed", [
      ["Bookie", (row) => row.bookie_id], ["First entry", (row) => count(row.first_entry_id), "number"],
      ["Last entry", (row) => count(row.last_entry_id), "number"],
    ], found.missed, "")) : null,
    found.archive ? card("Archive", facts([
      ["Object", found.archive.object, "long"], ["Size", bytes(found.archive.object_bytes)],
      ["Archived", moment(found.archive.archived_at)], ["Bookies may drop their copies", found.archive.copies_released ? "yes" : "no"],
    ])) : null,
    custom.length ? card("Custom metadata", facts(custom)) : null,
  ];
}

const VERDICTS = { intact: "good", absent: "warn", damaged: "bad", unknown: "warn", deleted: "warn", "no answer": "bad" };

export async function entry(parts) {
  const [id, number] = parts.map(encodeURIComponent);
  const found = await get(`ledgers/${id}/entries/${number}/trace`);
  const rows = found.copies.map((copy) => ({
    ...copy,
    key: copy.bookie_id,
    where: (copy.places ?? []).map((place) => `${place.where}: ${place.detail} (${bytes(place.size)})`).join("; "),
    batch: copy.first_entry_id >= 0 && copy.last_entry_id >= 0 ? `${copy.first_entry_id} .. ${copy.last_entry_id}` : "–",
    checksum: copy.batch_crc ? copy.batch_crc.toString(16).padStart(8, "0") : "–",
  }));
  return [
    el("p", { class: "crumbs" }, el("a", { href: "#/ledgers" }, "Ledgers"), " / ", el("a", { href: `#/ledgers/${id}` }, `Ledger ${found.ledger_id}`), " /"),
    el("div", { class: "title" }, el("h1", { tabindex: "-1" }, `Entry ${found.entry_id}`), pill(found.good ? "all copies as they must be" : "something is wrong", found.good ? "good" : "bad")),
    el("ul", { class: "problems" }, found.problems.map((problem) => el("li", {}, problem))),
    card(`${found.copies_intact} intact copies of ${found.copies_wanted}`, table("Copies", [
      ["Bookie", (row) => el("a", { href: `#/bookies/${encodeURIComponent(row.bookie_id)}` }, row.bookie_id)],
      ["Verdict", (row) => pill(row.verdict, VERDICTS[row.verdict] ?? "")],
      ["Entries of the batch", (row) => row.batch, "number"],
      ["Checksum", (row) => el("code", {}, row.checksum)],
      ["Where", (row) => row.where || row.why || "–", "path"],
    ], rows, "No bookie should have it.")),
    found.archive ? card("Archive", facts([["Object", found.archive.object, "long"], ["Verdict", pill(found.archive.verdict, VERDICTS[found.archive.verdict] ?? "")], ["Why", found.archive.why || "–"]])) : null,
  ];
}
