// @ts-check
// The keys of all pages, and their help. The keys are those of nomad-lite top where it has the same.

import { access } from "./api.js";
import { checkbox, h } from "./dom.js";
import * as search from "./search.js";

// help has the keys by where they work, in the order of the help.
/** @type {[string, [string, string][]][]} */
const help = [
  ["Each page", [
    ["?", "these keys"], ["/", "search"], ["f", "filter of the page"], ["1 2 3 …", "tabs of the page"], ["q", "list of jobs"],
  ]],
  ["Rows", [
    ["j k", "next, previous"], ["g G", "first, last"], ["Enter", "open"], ["Tab", "next link or button of the row"], ["← h, →", "hide, show launched jobs"],
  ]],
  ["Selected row, or the page", [["t", "time line"], ["l", "output"], ["e", "terminal"]]],
  ["Time line", [
    ["+ −", "zoom"], ["← → Home End", "select a span"], ["Shift with ← →", "move"], ["0", "show all"],
  ]],
  ["Charts", [["← → Home End", "read a value"], ["Page Up, Down", "ten values on"], ["Escape", "newest value"]]],
  ["Search", [["↑ ↓ Enter", "select and open a result"], ["Escape", "close"]]],
  ["Editor of job specifications", [["Tab", "indent"], ["Escape, then Tab", "leave"], ["Ctrl with Enter", "plan"]]],
];

// offKey is the name of the mark in the local storage that the user has switched the keys off. Programs that type what is
// spoken press keys that nobody meant.
const offKey = "nomad-lite-keys-off";

// startKeys handles the keys from now on. go(path) shows a page.
export function startKeys(go) {
  const actions = {
    "?": openHelp,
    "/": () => !access.readOnly && search.open(),
    f: () => focus(document.querySelector("main input[type=search]")),
    q: () => go("/ui/jobs"),
    j: () => moveBy(1),
    k: () => moveBy(-1),
    g: () => moveToEnd(0),
    G: () => moveToEnd(-1),
    t: () => click(findLink(/^\/ui\/allocations\/.*\/timeline$/)),
    l: () => click(findLink(/^\/ui\/allocations\/.*\/logs$/)),
    e: () => click(findLink(/^\/ui\/exec\//)),
    h: () => setExpanded(false),
    ArrowLeft: () => setExpanded(false),
    ArrowRight: () => setExpanded(true),
  };
  for (let i = 1; i <= 9; i++) actions[i] = () => click(document.querySelectorAll("main .tabs a")[i - 1]);

  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(actions, event.key)) return;
    // A key in a form must not leave the page, which would lose what was entered.
    if (/** @type {Element} */ (event.target).closest("form, input:not([type=checkbox]), textarea, select, [contenteditable], .terminal") || document.querySelector("dialog[open]")) return;
    if (event.key.length === 1 && localStorage.getItem(offKey) !== null) return;
    // The search opens at once, so that it gets the keys after "/".
    if (actions[event.key]() !== false) event.preventDefault();
  });
}

// openHelp shows the keys.
export function openHelp() {
  const dialog = h("dialog", {
    class: "ask keys", "aria-labelledby": "keys-title", onclose: () => dialog.remove(),
    onkeydown: (event) => {
      if (event.key !== "?" && event.key !== "q") return;
      event.preventDefault(); // the key does nothing on the page below
      dialog.close();
    },
  }, h("div", { class: "title" }, h("h2", { id: "keys-title" }, "Keys"), h("button", { onclick: () => dialog.close() }, "Close")),
  h("div", { class: "key-groups" }, help.map(([where, keys]) => h("section", null, h("h3", null, where),
    h("dl", null, keys.map(([key, text]) => [h("dt", null, h("kbd", null, key)), h("dd", null, text)]))))),
  checkbox("Switch off keys of one letter or sign in this browser", "off"));
  const off = dialog.querySelector("input");
  off.checked = localStorage.getItem(offKey) !== null;
  off.addEventListener("change", () => (off.checked ? localStorage.setItem(offKey, "") : localStorage.removeItem(offKey)));
  document.body.append(dialog);
  dialog.showModal();
  dialog.querySelector("button").focus();
}

const isUsable = (element) => element.checkVisibility() && !element.disabled && !element.hasAttribute("aria-disabled");

// findStops returns the rows of the page with the link or button of each that gets the focus.
function findStops() {
  return [...document.querySelectorAll("main :is(tbody tr, li, summary)")].map((row) => ({
    row, control: row.matches("summary") ? row : [...row.querySelectorAll("a[href], button")].find(isUsable),
  })).filter(({ control }) => control && isUsable(control));
}

// selectedRow returns the row with the focus, or null.
const selectedRow = () => document.activeElement.closest("main :is(tbody tr, li, summary)");

// moveBy moves the focus by a number of rows. If no row has it, the first one on the screen gets it.
function moveBy(count) {
  const stops = findStops(), selected = selectedRow();
  const at = stops.findIndex(({ row }) => row === selected);
  if (at >= 0) focus(stops[Math.max(0, Math.min(stops.length - 1, at + count))].control);
  else focus((stops.find(({ row }) => row.getBoundingClientRect().top >= 0) ?? stops.at(-1))?.control);
}

// moveToEnd moves the focus to the first row or, with -1, to the last. A long table has elements only for the rows near the
// screen, and gets others after a scroll.
function moveToEnd(index) {
  scrollTo(0, index === 0 ? 0 : document.documentElement.scrollHeight);
  requestAnimationFrame(() => requestAnimationFrame(() => focus(findStops().at(index)?.control)));
}

// findLink returns the first usable link whose address matches the pattern, of the selected row, else of the page.
function findLink(pattern) {
  const links = [...(selectedRow()?.querySelectorAll("a[href]") ?? []), ...document.querySelectorAll("main a[href]")];
  return links.find((a) => pattern.test(a.getAttribute("href")) && isUsable(a));
}

function focus(element) {
  element?.focus();
  element?.scrollIntoView({ block: "nearest" });
}

function click(element) {
  element?.click();
}

// setExpanded shows or hides what the selected row hides. It returns false if the row hides nothing.
function setExpanded(isExpanded) {
  const button = /** @type {HTMLElement} */ (selectedRow()?.querySelector("button[aria-expanded]"));
  if (!button) return false;
  if (button.getAttribute("aria-expanded") !== String(isExpanded)) button.click();
  return true;
}
