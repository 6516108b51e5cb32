// Builds elements from text and other elements, never from markup, and updates the page without losing the focus.

const SVG = "http://www.w3.org/2000/svg";
const DRAWN = new Set(["svg", "path", "polyline", "line", "circle", "title"]);

// An element. Of `given`, functions are handlers (onclick), and everything else an attribute; null and false are none.
export function el(tag, given = {}, ...children) {
  const drawn = DRAWN.has(tag);
  const node = drawn ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (typeof value === "function") node[name] = value;
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const HANDLERS = ["onclick", "onsubmit", "onchange"];

// Update `old` to look like `fresh`, element by element, so that focus and scroll position are kept.
export function renew(old, fresh) {
  const before = [...old.childNodes];
  const after = [...fresh.childNodes];
  after.forEach((child, at) => {
    const there = before[at];
    if (there === undefined) old.append(child);
    else if (!alike(there, child)) there.replaceWith(child);
    else if (there.nodeType === Node.TEXT_NODE) {
      if (there.data !== child.data) there.data = child.data;
    } else {
      for (const { name } of [...there.attributes]) if (!child.hasAttribute(name)) there.removeAttribute(name);
      for (const { name, value } of [...child.attributes]) {
        if (there.getAttribute(name) !== value) there.setAttribute(name, value);
      }
      for (const name of HANDLERS) there[name] = child[name];
      renew(there, child);
    }
  });
  before.slice(after.length).forEach((child) => child.remove());
}

function alike(one, other) {
  return one.nodeName === other.nodeName && (one.dataset?.key ?? "") === (other.dataset?.key ?? "");
}

// A table in a region that scrolls if it is too wide. Columns: [title, cell of a row, "number" or "", aria-sort].
export function table(caption, columns, rows, none) {
  if (!rows.length) return el("p", { class: "quiet" }, none);
  const kind = (column) => (column[2] ? { class: column[2] } : {});
  return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {},
      el("thead", {}, el("tr", {}, columns.map((column) => el("th", { scope: "col", "aria-sort": column[3], ...kind(column) }, column[0])))),
      el("tbody", {}, rows.map((row) =>
        el("tr", { "data-key": row.key }, columns.map((column) => el("td", kind(column), column[1](row))))))));
}

// A form that puts its fields into the query of a view; empty fields are left out.
export function filters(place, kept, ...fields) {
  const send = (form) => {
    const given = [...new FormData(form), ...Object.entries(kept)].filter(([, value]) => value);
    location.hash = given.length ? `${place}?${new URLSearchParams(given)}` : place;
  };
  return el("form", {
    class: "filters", role: "search",
    onsubmit: (event) => {
      event.preventDefault();
      send(event.currentTarget);
    },
    onchange: (event) => {
      if (event.target.tagName === "SELECT") send(event.currentTarget);
    },
  }, fields, el("button", {}, "Search"));
}

export function card(title, ...content) {
  return el("section", { class: "card" }, el("h2", {}, title), ...content);
}

// A list of facts: name, value, and "long" if the value needs a line of its own.
export function facts(pairs) {
  return el("dl", { class: "facts" }, pairs.map(([name, value, kind]) => el("div", { class: kind }, el("dt", {}, name), el("dd", {}, value ?? "–"))));
}

export function pill(text, kind) {
  return el("span", { class: `pill ${kind}` }, text);
}
