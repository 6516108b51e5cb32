// Formats numbers for people. An unknown value is a dash.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

// Whole numbers beyond 2^53 are strings in answers.
export function count(value) {
  if (typeof value === "string" && /^-?\d+$/.test(value)) return BigInt(value).toLocaleString("en");
  return Number.isFinite(value) ? Math.round(value).toLocaleString("en") : "–";
}

// An id: never rounded, never grouped.
export function id(value) {
  return value === null || value === undefined ? "–" : String(value);
}

// The id that many after another one.
export function plus(value, added) {
  return String(BigInt(value) + BigInt(added));
}

// How many come between two numbers of a sequence.
export function between(from, to) {
  return Number(BigInt(to) - BigInt(from));
}

export function rate(value) {
  if (!Number.isFinite(value)) return "–";
  return value > 0 && value < 10 ? value.toFixed(1) : count(value);
}

export function bytes(value) {
  if (!Number.isFinite(value)) return "–";
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

export function milliseconds(value) {
  return Number.isFinite(value) ? `${value < 10 ? value.toFixed(2) : value.toFixed(0)} ms` : "–";
}

export function percent(fraction) {
  return Number.isFinite(fraction) ? `${Math.round(fraction * 100)} %` : "–";
}

export function seconds(value) {
  if (!Number.isFinite(value)) return "–";
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${Math.round(value / 3600)} h`;
  return `${Math.round(value / 86400)} days`;
}

// 2026-11-24T00:50:46.976+00:00 -> 2026-11-24 00:50:46 UTC; milliseconds since the epoch likewise
export function moment(given) {
  if (given === null || given === undefined) return "–";
  const text = typeof given === "number" ? new Date(given).toISOString() : String(given);
  return text.replace("T", " ").replace(/(\.\d+)?(Z|\+00:00)?$/, " UTC");
}

// 1 ledger, 2 ledgers
export function many(value, what, plural = `${what}s`) {
  return `${count(value)} ${value === 1 ? what : plural}`;
}

export function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
