// The page: routing between views, periodic refresh, and the indicator of stale data.

import { Failed, get, hasToken, useToken } from "./api.js";
import { el, renew } from "./dom.js";
import { entry, ledger, ledgers } from "./ledgers.js";
import { bookie, overview } from "./overview.js";
import { stream, streams } from "./streams.js";
import { maintenance } from "./maintenance.js";

const REFRESH_MS = 2000;
// Longer than a poll of a bookie that hangs.
const STALE_MS = 12000;

const ROUTES = [
  [/^\/$/, overview, "Overview"],
  [/^\/bookies\/([^/]+)$/, bookie, "Bookie"],
  [/^\/ledgers$/, ledgers, "Ledgers"],
  [/^\/ledgers\/(\d+)$/, ledger, "Ledger"],
  [/^\/ledgers\/(\d+)\/entries\/(\d+)$/, entry, "Entry"],
  [/^\/maintenance$/, maintenance, "Repair and archive"],
  [/^\/streams$/, streams, "Streams"],
  [/^\/streams\/([^/]+)$/, streams, "Streams"],
  [/^\/streams\/([^/]+)\/([^/]+)$/, stream, "Stream"],
];

const view = document.getElementById("view");
const live = document.getElementById("live");
const signing = document.getElementById("sign-in");
let shown = "";
// Time of the data on the page, by the browser's clock; 0: no data yet.
let seenAt = 0;
let trouble = "";
let byKey = false;
let turn = 0;
let timer = 0;

function status() {
  const age = Date.now() - seenAt;
  if (signing.open) return ["", "not signed in"];
  if (seenAt && !trouble && age < STALE_MS) return ["live", "live"];
  const old = seenAt ? `${Math.round(age / 1000)} s old` : "nothing is known yet";
  return ["stale", trouble ? `${old}: ${trouble}` : old];
}

function tell() {
  const [kind, text] = status();
  live.className = kind;
  if (live.textContent !== text) live.textContent = text;
  document.body.classList.toggle("old", kind === "stale");
  leaving.hidden = !hasToken();
}

// Age of the replies that a view is made of: the console polls the cluster in the background.
class Age {
  ms = 0;
  why = "";
  known = true;

  note(answer) {
    if (answer.at_ms === null) this.known = false;
    this.ms = Math.max(this.ms, answer.age_ms ?? 0);
    this.why ||= answer.why;
  }
}

async function refresh() {
  clearTimeout(timer);
  const mine = ++turn;
  const hash = location.hash || "#/";
  const [path, search] = hash.slice(1).split("?");
  const route = ROUTES.find(([pattern]) => pattern.test(path));
  try {
    if (route === undefined) {
      // Asked for the status alone, which is that of the console and not of the address.
      await get("namespaces?limit=1");
      throw new Failed(404, { message: "there is no such view" });
    }
    const [pattern, draw, title] = route;
    const age = new Age();
    const fresh = await draw(path.match(pattern).slice(1).map(decodeURIComponent), new URLSearchParams(search), confirm, age);
    if (mine !== turn) return;
    document.title = `${title} · Tallybook`;
    show(hash, fresh);
    seenAt = age.known ? Date.now() - age.ms : 0;
    trouble = age.why;
  } catch (error) {
    if (mine !== turn) return;
    failed(hash, error);
  }
  tell();
  timer = setTimeout(refresh, REFRESH_MS);
}

function failed(hash, error) {
  const known = error instanceof Failed;
  if (!known) console.error(error);
  const text = known ? error.message : "the page has a defect";
  // A token that was refused is an error; a missing one is not.
  if (known && error.status === 401) return signIn(hasToken() ? text : "");
  // The console has answered: what is missing is no trouble of the cluster.
  const missing = known && error.status === 404;
  trouble = missing ? "" : text;
  if (missing) seenAt = Date.now();
  // Keep the old content, unless it belongs to another view or its object is gone.
  if (shown !== hash || missing) {
    show(hash, [el("p", { class: "error", role: "alert" }, text), el("p", {}, el("a", { href: "#/" }, "Overview"))]);
  }
}

function show(hash, content) {
  const other = shown !== hash;
  const moved = other && shown !== "" && byKey;
  shown = hash;
  renew(view, el("main", {}, ...content));
  const place = hash.slice(1).split(/[?]/)[0];
  for (const link of document.querySelectorAll("nav a")) {
    const to = link.getAttribute("href").slice(1);
    const here = to === "/" ? place === "/" || place.startsWith("/bookies") : place.startsWith(to);
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (other) scrollTo(0, 0);
  // After keyboard navigation, focus the heading of the new view.
  if (moved && !document.querySelector("dialog[open]")) (view.querySelector("h1") ?? view).focus({ preventScroll: true });
}

document.querySelector(".skip").onclick = (event) => {
  // Its href is not a route.
  event.preventDefault();
  view.focus();
};
addEventListener("keydown", () => { byKey = true; }, true);
addEventListener("pointerdown", () => { byKey = false; }, true);

const asking = document.getElementById("confirm");

// Ask for confirmation, and for a password if needed; show the error if the action failed.
function confirm(title, text, yes, work, { password = false } = {}) {
  const part = (name) => document.getElementById(`confirm-${name}`);
  part("title").textContent = title;
  part("text").textContent = text;
  part("error").textContent = "";
  part("yes").textContent = yes;
  part("yes").disabled = false;
  part("secret").hidden = !password;
  part("password").value = "";
  part("no").onclick = () => asking.close();
  part("form").onsubmit = async (event) => {
    event.preventDefault();
    part("yes").disabled = true;
    try {
      await work(part("password").value);
      asking.close();
    } catch (error) {
      part("error").textContent = error.outcome === "unknown" ? `${error.message}; whether it took effect is not known` : error.message;
      part("yes").disabled = false;
    }
    part("password").value = "";
    refresh();
  };
  asking.showModal();
  part("no").focus();
}

const leaving = document.getElementById("sign-out");
leaving.onclick = () => {
  useToken("");
  // Remove the data of the signed-out user from the page.
  location.reload();
};

function signIn(why) {
  document.getElementById("sign-in-error").textContent = why;
  if (!signing.open) signing.showModal();
}

document.getElementById("sign-in-form").onsubmit = (event) => {
  event.preventDefault();
  const field = document.getElementById("token");
  useToken(field.value.trim());
  field.value = "";
  signing.close();
  refresh();
};

addEventListener("hashchange", refresh);
setInterval(tell, 1000);
refresh();
