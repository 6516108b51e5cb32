// Elements, made of text and other elements; never of markup. And how a page is renewed without losing the focus.

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

// Make `old` look like `fresh`, element by element: whoever is on one stays there.
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

// A table in a region that scrolls by itself where it is too wide. Columns: [title, cell of a row, "number" or ""].
export function table(caption, columns, rows, none) {
  if (!rows.length) return el("p", { class: "quiet" }, none);
  const kind = (column) => (column[2] ? { class: column[2] } : {});
  return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {},
      el("thead", {}, el("tr", {}, columns.map((column) => el("th", { scope: "col", ...kind(column) }, column[0])))),
      el("tbody", {}, rows.map((row) =>
        el("tr", { "data-key": row.key }, columns.map((column) => el("td", kind(column), column[1](row))))))));
}

export function card(title, ...content) {
  return el("section", { class: "card" }, el("h2", {}, title), ...content);
}

// Facts: a name, what it is, and "long" if that takes a line of its own.
export function facts(pairs) {
  return el("dl", { class: "facts" }, pairs.map(([name, value, kind]) => el("div", { class: kind }, el("dt", {}, name), el("dd", {}, value ?? "–"))));
}

export function pill(text, kind) {
  return el("span", { class: `pill ${kind}` }, text);
}
