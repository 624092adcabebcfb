// @ts-check
// Lines of the output of tasks, and files.

import { element as ansiElement } from "../ansi.js";
import { h } from "../dom.js";
import { clock } from "../format.js";

// lineElement creates the element of a line of tasklog.js. style.css shows its time where a page wants it.
export function lineElement(line) {
  if (line.isGap) return h("div", { class: "line gap" }, line.text);
  return h("div", { class: "line " + line.stream }, line.time !== undefined && h("span", { class: "time" }, clock(line.time * 1e6, true) + " "),
    line.stream === "stderr" && h("span", { class: "stream" }, "stderr "), ansiElement(line.text));
}

// save stores a blob as a file of the browser.
export function save(blob, name) {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name.replace(/[^\w.-]/g, "_") }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60e3);
}
