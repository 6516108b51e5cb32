// Views: the list of ledgers, one ledger with its fragments, and the copies of one entry.

import { get, remove } from "./api.js";
import { card, el, facts, filters, pill, table } from "./dom.js";
import { bytes, count, id, many, moment, plus, seconds } from "./format.js";

const KINDS = { open: "good", closed: "", in_recovery: "warn", unreadable: "bad" };

function state(found) {
  const shown = pill(String(found.state).replaceAll("_", " "), KINDS[found.state] ?? "");
  return found.why ? [shown, " ", el("span", { class: "quiet path" }, found.why)] : shown;
}

function named(bookies) {
  return bookies.map((name, at) => [at ? ", " : "", el("a", { href: `#/bookies/${encodeURIComponent(name)}` }, name)]);
}

// A form with a number field that navigates to an id.
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

const STATES = { "": "any state", open: "open", in_recovery: "in recovery", closed: "closed" };
// Each column that sorts: the order of the first click and of the second one.
const CREATED = ["newest", "oldest"];
const SIZE = ["largest", "smallest"];
const ENTRIES = ["most-entries", "fewest-entries"];

function counted(page, filtered) {
  if (page.at_ms === null) return page.why ? `Not counted: ${page.why}` : "The ledgers are being counted for the first time.";
  const parts = [filtered ? `${count(page.matches)} of ${many(page.total, "ledger")}` : many(page.total, "ledger")];
  if (page.indexed < page.total) parts.push(`the ${count(page.indexed)} with the highest ids can be listed here`);
  if (page.unreadable) parts.push(`${count(page.unreadable)} more with unreadable metadata: tallybook fsck names them`);
  parts.push(`counted ${seconds(page.age_ms / 1000)} ago`);
  return page.why ? `${parts.join(" · ")}; since then: ${page.why}` : parts.join(" · ");
}

export async function ledgers(_parts, query) {
  const asked = { sort: query.get("sort") ?? "newest", state: query.get("state") ?? "", search: query.get("search") ?? "" };
  const given = (values) => new URLSearchParams(Object.entries(values).filter(([, value]) => value));
  const offset = query.get("offset") ?? "";
  const page = await get(`ledgers?${given({ ...asked, offset })}`);
  const to = (changed) => `#/ledgers?${given({ ...asked, ...changed })}`;
  const sorted = (title, [first, second]) => {
    const next = asked.sort === first ? second : first;
    const arrow = { [first]: " ↓", [second]: " ↑" }[asked.sort] ?? "";
    return el("a", { href: to({ sort: next }), title: `Sort by: ${next.replace("-", " ")}` }, title + arrow);
  };
  const order = ([first, second]) => ({ [first]: "descending", [second]: "ascending" })[asked.sort];
  const columns = [
    ["Ledger", (row) => el("a", { href: `#/ledgers/${row.ledger_id}` }, id(row.ledger_id))],
    ["Name", (row) => row.custom?.name ?? "–", "name"],
    ["State", state, "name"],
    [sorted("Entries", ENTRIES), (row) => count(row.entries ?? NaN), "number", order(ENTRIES)],
    [sorted("Size", SIZE), (row) => bytes(row.bytes ?? NaN), "number", order(SIZE)],
    ["Ensemble / write / ack", (row) => (row.ensemble ? `${row.ensemble} / ${row.write_quorum} / ${row.ack_quorum}` : "–"), "number"],
    ["Fragments", (row) => count(row.fragments?.length), "number"],
    ["Archive", (row) => (row.archive ? pill(row.archive.copies_released ? "only in the archive" : "archived", "") : "–")],
    [sorted("Created", CREATED), (row) => moment(row.created_at), "number", order(CREATED)],
  ];
  const filtered = Boolean(asked.state || asked.search);
  const kept = asked.sort === "newest" ? {} : { sort: asked.sort };
  return [
    el("div", { class: "title" }, el("h1", { tabindex: "-1" }, "Ledgers"),
      filters("#/ledgers", kept,
        el("label", {}, "Name or id ", el("input", { name: "search", "data-key": asked.search, type: "search", value: asked.search, size: 18, autocomplete: "off" })),
        el("label", {}, "State ", el("select", { name: "state", "data-key": asked.state, autocomplete: "off" },
          Object.entries(STATES).map(([value, name]) => el("option", { value, selected: value === asked.state }, name))))),
      go("Ledger", (number) => `#/ledgers/${number}`)),
    el("section", { class: "card" },
      table("Ledgers", columns, page.ledgers.map((row) => ({ ...row, key: id(row.ledger_id) })), filtered ? "No ledger matches." : "There is no ledger."),
      el("p", { class: "quiet" }, counted(page, filtered))),
    el("p", { class: "pages" },
      offset && el("a", { href: to({}) }, "First page"),
      page.next !== null && el("a", { href: to({ offset: page.next }) }, "Next page")),
  ];
}

function deletion(found, confirm) {
  const name = `Ledger ${found.ledger_id}`;
  const content = found.entries === null ? "all of its entries" : found.entries === 1 ? "its one entry" : `its ${count(found.entries)} entries`;
  const where = found.archive ? "from the bookies and from the archive" : "from the bookies";
  return el("button", {
    type: "button",
    class: "danger",
    onclick: () => confirm(`Delete: ${name}`,
      `This deletes ${content}, ${where}. It cannot be undone. A stream with this ledger as a segment loses its records.`, "Delete",
      async (password) => {
        await remove(`ledgers/${found.ledger_id}`, found.password ? { password } : {});
        location.hash = "#/ledgers";
      }, { password: found.password }),
  }, "Delete");
}

export async function ledger(parts, _query, confirm) {
  const found = await get(`ledgers/${encodeURIComponent(parts[0])}`);
  const ends = found.fragments.slice(1).map((fragment) => plus(fragment.first_entry_id, -1));
  const rows = found.fragments.map((fragment, at) => ({ ...fragment, key: id(fragment.first_entry_id), end: ends[at] ?? found.last_entry_id ?? "…" }));
  const custom = Object.entries(found.custom);
  return [
    el("p", { class: "crumbs" }, el("a", { href: "#/ledgers" }, "Ledgers"), " /"),
    el("div", { class: "title" }, el("h1", { tabindex: "-1" }, `Ledger ${found.ledger_id}`), state(found), deletion(found, confirm), go("Entry", (entry) => `#/ledgers/${found.ledger_id}/entries/${entry}`)),
    card("Details", facts([
      ["Entries", count(found.entries ?? NaN)], ["Size", bytes(found.bytes ?? NaN)],
      ["Readers see up to", id(found.last_add_confirmed)],
      ["Ensemble / write / ack quorum", `${found.ensemble} / ${found.write_quorum} / ${found.ack_quorum}`],
      ["Digest", found.digest], ["Password", found.password ? "yes" : "no"], ["Created", moment(found.created_at)],
    ])),
    card("Fragments", table("Fragments", [
      ["First entry", (row) => el("a", { href: `#/ledgers/${found.ledger_id}/entries/${row.first_entry_id}` }, String(row.first_entry_id))],
      ["Last entry", (row) => String(row.end)],
      ["Bookies", (row) => named(row.bookies)],
    ], rows, "It has no fragments.")),
    found.missed.length ? card("Under-replicated ranges", table("Missed", [
      ["Bookie", (row) => row.bookie_id], ["First entry", (row) => id(row.first_entry_id), "number"],
      ["Last entry", (row) => id(row.last_entry_id), "number"],
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
  const [ledgerId, entryId] = parts.map(encodeURIComponent);
  const found = await get(`ledgers/${ledgerId}/entries/${entryId}/trace`);
  const rows = found.copies.map((copy) => ({
    ...copy,
    key: copy.bookie_id,
    where: (copy.places ?? []).map((place) => `${place.where}: ${place.detail} (${bytes(place.size)})`).join("; "),
    batch: copy.first_entry_id >= 0 && copy.last_entry_id >= 0 ? `${copy.first_entry_id} .. ${copy.last_entry_id}` : "–",
    checksum: copy.batch_crc ? copy.batch_crc.toString(16).padStart(8, "0") : "–",
  }));
  return [
    el("p", { class: "crumbs" }, el("a", { href: "#/ledgers" }, "Ledgers"), " / ", el("a", { href: `#/ledgers/${ledgerId}` }, `Ledger ${found.ledger_id}`), " /"),
    el("div", { class: "title" }, el("h1", { tabindex: "-1" }, `Entry ${found.entry_id}`), pill(found.good ? "all copies intact" : "problems found", found.good ? "good" : "bad")),
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
