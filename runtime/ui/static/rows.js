// A table for many rows that change: only the rows on the screen have elements, an unchanged row keeps its
// element, and the focus stays where it is.

import { h, replace } from "./dom.js";

const margin = 20; // rows above and below the screen
const alwaysShown = 150; // a table with fewer rows has all of them

// rowTable creates a table. columns: [{title, cell(row), class, sort(row)}]; sort returns the value by which a
// column orders the rows, and is absent for columns that do not. key(row) returns a unique text. The result has
// the element and update(rows), which keeps the order of rows unless a column is selected for sorting. The
// signal ends the use of the table.
export function rowTable(label, columns, key, signal, order = { column: undefined, descending: false }) {
  const above = h("tr", { "aria-hidden": "true" }), below = h("tr", { "aria-hidden": "true" });
  const body = h("tbody", null, above, below), head = h("tr");
  const grid = h("table", { class: "rows" }, h("thead", null, head), body);
  const shown = new Map();
  let all = [], rows = [], height = 32;

  function drawHead() {
    replace(head, columns.map((c) => h("th", {
      scope: "col", class: c.class, "aria-sort": order.column === c ? (order.descending ? "descending" : "ascending") : undefined,
    }, c.sort ? h("button", { class: "plain", onclick: () => select(c) }, c.title, order.column === c && (order.descending ? " ▼" : " ▲")) : c.title)));
  }

  function select(column) {
    order = { column, descending: order.column === column ? !order.descending : Boolean(column.descendingFirst) };
    const index = columns.indexOf(column);
    drawHead();
    head.children[index].querySelector("button").focus();
    update(all);
  }

  function update(values) {
    all = values;
    rows = order.column ? sorted(values, order) : values;
    grid.setAttribute("aria-rowcount", rows.length + 1);
    draw();
  }

  function draw() {
    const top = body.getBoundingClientRect().top;
    const first = rows.length <= alwaysShown ? 0 : Math.min(Math.max(0, Math.floor(-top / height) - margin), rows.length - 1);
    const last = rows.length <= alwaysShown ? rows.length : Math.min(rows.length, first + Math.ceil(innerHeight / height) + 2 * margin);
    const focused = body.contains(document.activeElement) ? focusOf(document.activeElement) : undefined;
    const keys = new Set(rows.slice(first, last).map(key));
    for (const [k, row] of shown) if (!keys.has(k)) { row.element.remove(); shown.delete(k); }
    above.style.height = first * height + "px";
    below.style.height = (rows.length - last) * height + "px";
    let previous = above;
    for (let i = first; i < last; i++) {
      const row = rowElement(rows[i]);
      row.setAttribute("aria-rowindex", i + 2);
      if (previous.nextSibling !== row) previous.after(row);
      previous = row;
    }
    if (focused && !body.contains(document.activeElement)) focused();
    if (previous !== above && rows.length > alwaysShown) height = previous.offsetHeight || height;
  }

  function rowElement(value) {
    const k = key(value), text = JSON.stringify(value);
    let row = shown.get(k);
    if (row?.text === text) return row.element;
    row ??= { element: h("tr", { "data-key": k }) };
    row.text = text;
    replace(row.element, columns.map((c) => h("td", { class: c.class }, c.cell(value))));
    shown.set(k, row);
    return row.element;
  }

  // focusOf returns a function that focuses the same link or button of the row again.
  function focusOf(element) {
    const row = element.closest("tr"), k = row.getAttribute("data-key");
    const index = [...row.querySelectorAll("a, button")].indexOf(element);
    return () => shown.get(k)?.element.querySelectorAll("a, button")[index]?.focus({ preventScroll: true });
  }

  let frame = 0;
  const redraw = () => {
    frame ||= requestAnimationFrame(() => { frame = 0; if (rows.length > alwaysShown) draw(); });
  };
  addEventListener("scroll", redraw, { signal, passive: true });
  addEventListener("resize", redraw, { signal });
  drawHead();
  return { element: h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, grid), update };
}

function sorted(values, { column, descending }) {
  const direction = descending ? -1 : 1;
  return [...values].sort((a, b) => {
    const x = column.sort(a), y = column.sort(b);
    return direction * (x < y ? -1 : x > y ? 1 : 0);
  });
}
