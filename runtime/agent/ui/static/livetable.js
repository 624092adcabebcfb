// @ts-check
// A table whose rows change by themselves, which can have many rows: only those near the screen are elements.

import { columnTitle, h, update } from "./dom.js";

// windowMin is the number of rows up to which all rows are elements.
const windowMin = 150;

// overscan is the number of rows above and below the screen that are elements.
const overscan = 25;

// liveTable creates a table. columns: [{title, cell(row), class, sort(row), descendingFirst}]; a column with the function
// sort, which returns a number or a text, has a button that sorts. key(row) returns a text that identifies a row. It
// returns {element, show(rows)}; show keeps focus, selection and scroll position. The table stops its work when the
// signal ends. nestedRows(row) returns the rows that follow a row in each order of the table.
/** @param {(row: any) => any[]} [nestedRows] */
export function liveTable(label, columns, key, signal, nestedRows = () => []) {
  let rows = [], shown = [], nested = new Set(), sortBy = null, descending = false, rowHeight = 0, first = 0, last = windowMin;
  const body = h("tbody");
  const head = h("thead");
  const table = h("table", null, head, body);
  const element = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table);

  function sort(column) {
    descending = sortBy === column ? !descending : Boolean(column.descendingFirst);
    sortBy = column;
    order();
    draw();
  }

  function order() {
    let ordered = rows;
    if (sortBy) {
      const values = new Map(rows.map((row) => [row, sortBy.sort(row)]));
      const compare = (a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));
      ordered = [...rows].sort((a, b) => compare(values.get(a), values.get(b)) * (descending ? -1 : 1));
    }
    nested = new Set(rows.flatMap(nestedRows));
    shown = ordered.flatMap((row) => [row, ...nestedRows(row)]);
  }

  function title(column) {
    if (!column.sort) return h("th", { scope: "col", class: column.class }, columnTitle(column));
    const direction = column !== sortBy ? null : descending ? "descending" : "ascending";
    const arrow = { ascending: " ▲", descending: " ▼" }[direction];
    return h("th", { scope: "col", class: column.class, "aria-sort": direction },
      h("button", { class: "sort", onclick: () => sort(column) }, column.title, arrow && h("span", { "aria-hidden": "true" }, arrow)));
  }

  function draw() {
    const isWindow = shown.length > windowMin;
    const [from, to] = isWindow ? [Math.min(first, shown.length), Math.min(last, shown.length)] : [0, shown.length];
    if (isWindow) table.setAttribute("aria-rowcount", shown.length + 1);
    else table.removeAttribute("aria-rowcount");
    update(head, h("tr", null, columns.map(title)));
    update(body,
      isWindow && space("before", from, columns.length),
      shown.slice(from, to).map((row, i) => h("tr", { "data-key": key(row), class: nested.has(row) && "nested", "aria-rowindex": isWindow && from + i + 2 },
        columns.map((c) => h("td", { class: c.class }, c.cell(row))))),
      isWindow && space("after", shown.length - to, columns.length));
    for (const tr of body.querySelectorAll("tr.space")) tr.firstChild.style.height = tr.dataset.rows * rowHeight + "px";
    if (to > from && !rowHeight) measure();
  }

  function measure() {
    const drawn = body.querySelectorAll("tr:not(.space)");
    const height = drawn.length && drawn[drawn.length - 1].getBoundingClientRect().bottom - drawn[0].getBoundingClientRect().top;
    if (!height) return;
    rowHeight = height / drawn.length;
    moveWindow();
  }

  // moveWindow draws the rows near the screen, if others are drawn.
  function moveWindow() {
    if (shown.length <= windowMin || !rowHeight) return;
    const top = body.getBoundingClientRect().top;
    const from = Math.max(0, Math.floor(-top / rowHeight) - overscan);
    const to = Math.min(shown.length, Math.ceil((innerHeight - top) / rowHeight) + overscan);
    if (Math.abs(from - first) < overscan / 2 && Math.abs(to - last) < overscan / 2) return;
    first = from;
    last = Math.max(to, from + 1);
    draw();
  }

  let frame = 0;
  const onScroll = () => { frame ||= requestAnimationFrame(() => { frame = 0; moveWindow(); }); };
  addEventListener("scroll", onScroll, { signal, passive: true });
  addEventListener("resize", () => { rowHeight = 0; measure(); }, { signal });

  return {
    element,
    show: (value) => { rows = value; order(); draw(); moveWindow(); },
  };
}

// space creates the row that has the height of rows that are no elements.
function space(name, rows, columns) {
  return h("tr", { class: "space", "data-key": " " + name, "data-rows": rows, "aria-hidden": "true" }, h("td", { colspan: columns }));
}
