// Views: the list of streams, and one stream with the lags of its subscriptions.

import { get } from "./api.js";
import { card, el, facts, filters, pill, table } from "./dom.js";
import { between, bytes, count, id, many, moment, plus, seconds } from "./format.js";
import { latest, line, remember } from "./samples.js";

const NAMESPACES_MS = 30000;
let namespaces = null;

// Cached: namespaces change rarely, and there may be many.
async function known() {
  if (namespaces === null || Date.now() - namespaces.at > NAMESPACES_MS) namespaces = { at: Date.now(), ...(await get("namespaces")) };
  return namespaces;
}

function records(row) {
  if (row.end_sequence !== null || row.ended) return count(between(row.first_sequence, row.end_sequence ?? row.next_sequence));
  return `≥ ${count(between(row.first_sequence, row.next_sequence))}`;
}

function retention({ retention: age, retention_bytes: size }) {
  const limits = [age !== null && seconds(age), size !== null && bytes(size)].filter(Boolean);
  return limits.length ? limits.join(", ") : "for ever";
}

function largest(row) {
  if (row.largest_lag_records !== null) return many(row.largest_lag_records, "record");
  return row.subscriptions === 0 ? "no subscriptions" : "–";
}

export async function streams(parts, query) {
  const namespace = parts[0] ?? "default";
  const [after, search] = [query.get("after"), query.get("search") ?? ""];
  const asked = new URLSearchParams({ namespace, ...(search && { search }), ...(after === null ? {} : { after }) });
  const [spaces, page] = await Promise.all([known(), get(`streams?${asked}`)]);
  const names = spaces.namespaces.includes(namespace) ? spaces.namespaces : [namespace, ...spaces.namespaces];
  const more = spaces.total - spaces.namespaces.length;
  const here = (name) => `#/streams/${encodeURIComponent(name)}`;
  const to = (given) => `${here(namespace)}?${new URLSearchParams({ ...(search && { search }), ...given })}`;
  const none = !search ? "There is no stream in this namespace." : page.next === null ? "No stream matches." : "No match so far: the search goes on with the next page.";
  const columns = [
    ["Stream", (row) => el("a", { href: `${here(namespace)}/${encodeURIComponent(row.name)}` }, row.name), "name"],
    ["Records", (row) => (row.unreadable ? "–" : records(row)), "number"],
    ["Largest lag", (row) => (row.unreadable ? "–" : largest(row)), "number"],
    ["Segments", (row) => count(row.segments ?? NaN), "number"],
    ["Writer", (row) => (row.unreadable ? [pill("unreadable", "bad"), " ", row.unreadable] : row.ended ? pill("sealed", "") : row.owner ?? "none"), "name"],
    ["Retention", (row) => (row.unreadable ? "–" : retention(row.policy)), "number"],
    ["Created", (row) => moment(row.created_at), "number"],
  ];
  return [
    el("div", { class: "title" }, el("h1", { tabindex: "-1" }, "Streams"),
      el("p", { class: "choices" }, names.map((name) =>
        el("a", { href: here(name), "aria-current": name === namespace ? "true" : null }, name)),
      more > 0 && el("span", { class: "quiet" }, `and ${count(more)} more namespaces`)),
      filters(here(namespace), {}, el("label", {}, "Name ", el("input", { name: "search", "data-key": search, type: "search", value: search, size: 24, autocomplete: "off" })))),
    el("section", { class: "card" }, table("Streams", columns, page.streams.map((row) => ({ ...row, key: row.name })), none),
      el("p", { class: "quiet" }, "Ends and lags are some seconds old. If the end is not known, records are counted up to the last sealed segment: ≥.")),
    el("p", { class: "pages" },
      after !== null && el("a", { href: to({}) }, "First page"),
      page.next !== null && el("a", { href: to({ after: page.next }) }, "Next page")),
  ];
}

function segments(found) {
  return table("Segments", [
    ["Segment", (row) => String(row.segment)],
    ["Ledger", (row) => el("a", { href: `#/ledgers/${row.ledger_id}` }, id(row.ledger_id))],
    ["State", (row) => (row.ended_at === null ? pill("open", "good") : pill("sealed", ""))],
    ["Up to record", (row) => (row.next_sequence === null ? "–" : count(plus(row.next_sequence, -1))), "number"],
    ["Size", (row) => bytes(row.bytes ?? NaN), "number"],
    ["Created", (row) => moment(row.began_at), "number"],
    ["Sealed", (row) => (row.ended_at === null ? "–" : moment(row.ended_at)), "number"],
  ], found.map((row) => ({ ...row, key: row.segment })), "It has no segments yet.");
}

export async function stream(parts, query) {
  const [namespace, name] = parts;
  const place = `streams/${parts.map(encodeURIComponent).join("/")}`;
  const [after, reader] = [query.get("after"), query.get("subscription")];
  const to = (given) => `#/${place}?${new URLSearchParams({ ...(after === null ? {} : { after }), ...(reader === null ? {} : { subscription: reader }), ...given })}`;
  const [found, page] = await Promise.all([get(`${place}${reader === null ? "" : `?after=${encodeURIComponent(reader)}`}`), get(`${place}/segments${after === null ? "" : `?after=${encodeURIComponent(after)}`}`)]);
  const rows = found.subscriptions.map((row) => ({ ...row, key: row.subscription, series: `${found.stream_id}/${row.subscription}` }));
  rows.forEach((row) => remember(row.series, Number(row.lag_records ?? NaN)));
  return [
    el("p", { class: "crumbs" }, el("a", { href: `#/streams/${encodeURIComponent(namespace)}` }, "Streams"), ` / ${namespace} /`),
    el("div", { class: "title" }, el("h1", { tabindex: "-1" }, found.name), found.ended ? pill("sealed", "") : pill(found.owner === null ? "no writer" : `written by ${found.owner}`, found.owner === null ? "" : "good")),
    card("Details", facts([
      ["First record", count(found.first_sequence)], ["Next record", count(found.next_sequence)],
      ["Last position", found.last_position], ["Segments", count(found.segments)],
      ["Retention", retention(found.policy)],
      ["Stored", found.policy.max_bytes === null ? bytes(found.stored_bytes) : `${bytes(found.stored_bytes)} of at most ${bytes(found.policy.max_bytes)}`],
      ["Segments roll at", bytes(found.policy.roll_bytes)], ["Compression", found.policy.compression],
      ["Created", moment(found.created_at)],
    ])),
    card("Subscriptions", table("Subscriptions", [
      ["Subscription", (row) => row.subscription, "name"],
      ["Reader", (row) => row.reader ?? "none"],
      ["Behind", (row) => el("span", { class: "drawn" }, line(row.series, `Lag of ${row.subscription}`, { width: 80, height: 22 }), el("span", {}, row.lag_records === null ? row.why || "–" : many(latest(row.series), "record"))), "number"],
      ["Unread", (row) => bytes(row.lag_bytes ?? NaN), "number"],
      ["Oldest unread", (row) => (row.lag_records ? `${seconds(row.lag_s)} old` : "–"), "number"],
      ["Position", (row) => el("code", {}, row.cursor ?? "lost")],
    ], rows, "There is no subscription."),
      found.why && el("p", { class: "error" }, `The subscriptions after these cannot be read: ${found.why}`),
      el("p", { class: "pages" },
        reader !== null && el("a", { href: `#/${place}` }, "First subscriptions"),
        found.next !== null && el("a", { href: to({ subscription: found.next }) }, "and more: next subscriptions"))),
    card("Segments", segments(page.segments),
      el("p", { class: "quiet" }, "A stream is a chain of ledgers; each is a segment. The last ones are open while the stream has a writer.")),
    el("p", { class: "pages" },
      after !== null && el("a", { href: `#/${place}` }, "First segments"),
      page.next !== null && el("a", { href: to({ after: page.next }) }, "Next segments")),
  ];
}
