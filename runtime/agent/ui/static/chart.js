// A small chart of one value over the last minutes.

import { h, svg } from "./dom.js";

const samples = 150, width = 300, height = 70;

// chart creates a chart. format(value) returns the text of a value; limit is the value of the dashed line, 0 for
// none. The result has the element and add(value); undefined is a gap.
export function chart(title, format, limit = 0) {
  const values = [];
  const line = svg("path", { class: "chart-line" }), area = svg("path", { class: "chart-area" });
  const limitLine = svg("path", { class: "chart-limit" }), top = svg("text", { x: 2, y: 11, class: "chart-label" });
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" }, area, line, limitLine);
  const now = h("strong");
  const label = svg("svg", { "aria-hidden": "true" }, top);
  const element = h("figure", { class: "chart" }, h("figcaption", null, title, " ", now, limit > 0 && h("span", { class: "dim" }, " of " + format(limit))), h("div", null, picture, label));

  function add(value) {
    values.push(value);
    if (values.length > samples) values.shift();
    const known = values.filter((v) => v !== undefined);
    const maximum = Math.max(...known, known.length && limit <= 4 * Math.max(...known) ? limit : 0) * 1.1 || 1;
    const x = (i) => width - (values.length - 1 - i) * (width / (samples - 1));
    const y = (v) => height - 1 - (v / maximum) * (height - 2);
    let path = "", fill = "", previous = false;
    values.forEach((v, i) => {
      if (v === undefined) { previous = false; return; }
      path += `${previous ? "L" : "M"}${x(i).toFixed(1)} ${y(v).toFixed(1)}`;
      fill += previous ? "" : `M${x(i).toFixed(1)} ${height}`;
      fill += `L${x(i).toFixed(1)} ${y(v).toFixed(1)}`;
      if (values[i + 1] === undefined) fill += `L${x(i).toFixed(1)} ${height}Z`;
      previous = true;
    });
    line.setAttribute("d", path);
    area.setAttribute("d", fill);
    limitLine.setAttribute("d", limit > 0 && limit < maximum ? `M0 ${y(limit)}H${width}` : "");
    top.textContent = format(maximum);
    now.textContent = value === undefined ? "–" : format(value);
  }
  return { element, add };
}
