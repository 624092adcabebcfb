// @ts-check
// A text area with line numbers and colours, in which lines with errors are marked. The colours are a copy of the visible
// lines below the text area, whose own text is transparent.

import { h, replace } from "./dom.js";
import { lines as hclLines } from "./hcl.js";

const maxColoured = 300_000; // characters of a text with colours: each change reads the whole text

// editor creates the text area. options: id, of the text area; value; onchange, called after each change of the text.
// It returns {element, text(), set(text), mark(lines), select(from, to)}. Positions are {line, column}, from 1. The
// Tab key indents; after Escape, it moves the focus.
export function editor({ id, value, onchange }) {
  const numbers = h("div", { class: "numbers", "aria-hidden": "true" });
  const area = h("textarea", {
    id, class: "mono", wrap: "off", spellcheck: "false", autocomplete: "off", autocapitalize: "off", rows: "24", "aria-describedby": id + "-keys",
    oninput: () => { number(); colour(); onchange(); },
    onscroll: () => { numbers.scrollTop = area.scrollTop; drawColours(); },
    onkeydown: onKey,
    onbeforeinput: indentLine,
  });
  area.value = value;
  const colours = h("div", { class: "colours", "aria-hidden": "true" });
  const text = h("div", { class: "text" }, colours, area);
  let marked = new Set(), lines = -1, tabLeaves = false, coloured = [];

  // colour reads the text anew.
  function colour() {
    coloured = area.value.length > maxColoured ? area.value.split("\n").map((line) => [["", line]]) : hclLines(area.value);
    drawColours();
  }

  function drawColours() {
    const style = getComputedStyle(area), height = parseFloat(style.lineHeight) || 20;
    const first = Math.max(0, Math.floor(area.scrollTop / height) - 1), count = Math.ceil(area.clientHeight / height) + 2;
    colours.style.transform = `translate(${-area.scrollLeft}px, ${first * height - area.scrollTop}px)`;
    replace(colours, coloured.slice(first, first + count).map((line, i) =>
      h("div", { class: marked.has(first + i + 1) && "marked" }, line.map(([kind, part]) => (kind ? h("span", { class: "hcl-" + kind }, part) : part)), "\n")));
  }

  new ResizeObserver(drawColours).observe(area); // it is called at first when the element is on the page

  function number() {
    const now = area.value.split("\n").length;
    if (now === lines && marked.size === 0) return;
    lines = now;
    if (marked.size === 0) numbers.textContent = Array.from({ length: lines }, (_, i) => i + 1).join("\n");
    else replace(numbers, Array.from({ length: lines }, (_, i) => [marked.has(i + 1) ? h("mark", null, "✗ " + (i + 1)) : i + 1, "\n"]));
    numbers.scrollTop = area.scrollTop;
  }

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.key === "Tab" && !event.shiftKey && !tabLeaves) {
      event.preventDefault();
      insert("  ");
    }
    tabLeaves = event.key === "Escape";
  }

  // indentLine gives a new line the indentation of the line before it.
  function indentLine(event) {
    if (event.inputType !== "insertLineBreak") return;
    const before = area.value.slice(0, area.selectionStart);
    const indent = /[ \t]*/.exec(before.slice(before.lastIndexOf("\n") + 1))[0];
    if (!indent) return;
    event.preventDefault();
    insert("\n" + indent);
  }

  number();
  colour();
  return {
    element: h("div", { class: "editor" }, numbers, text),
    text: () => area.value,
    set: (value) => { area.value = value; marked = new Set(); lines = -1; number(); colour(); onchange(); },
    mark: (list) => { marked = new Set(list); lines = -1; number(); drawColours(); },
    select: (from, to) => {
      const start = offset(area.value, from);
      area.focus();
      area.setSelectionRange(start, Math.max(start, offset(area.value, to)));
      const lineHeight = parseFloat(getComputedStyle(area).lineHeight);
      area.scrollTop = Math.max(0, (from.line - 4) * lineHeight);
    },
  };
}

// insert replaces the selection of the element with the focus, so that undo can take it back.
function insert(text) {
  document.execCommand("insertText", false, text);
}

// offset returns the index of a position in a text. A column counts characters, not units of UTF-16.
function offset(text, { line, column }) {
  let at = 0;
  for (let i = 1; i < line; i++) {
    const end = text.indexOf("\n", at);
    if (end < 0) return text.length;
    at = end + 1;
  }
  const end = text.indexOf("\n", at);
  const content = text.slice(at, end < 0 ? text.length : end);
  return at + [...content].slice(0, column - 1).join("").length;
}
