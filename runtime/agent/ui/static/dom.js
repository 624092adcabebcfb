// @ts-check
// Creation of elements. Everything from jobs, tasks and files is text: no function here, and no other
// module, parses HTML. The Content-Security-Policy of the page enforces this.

import { access } from "./api.js";
import { age, clock, milliseconds } from "./format.js";

// h creates an element. attributes: "class", "id", ARIA and other attributes as text; a name that starts with
// "on" adds an event listener; false, null and undefined are omitted, true sets an empty attribute. With "permitted" false, a button
// or a link is disabled, because the token of the tab does not permit what it does.
// children: nodes, text, numbers, and arrays of these; false, null and undefined are omitted.
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

// svg is h for elements of SVG.
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  const shown = attributes?.permitted === false ? disabled(element, attributes) : attributes;
  for (const [name, value] of Object.entries(shown ?? {})) {
    if (name === "permitted") continue;
    if (name.startsWith("on")) {
      listen(element, name.slice(2), value);
    } else if (value === true) {
      element.setAttribute(name, "");
    } else if (value !== false && value != null) {
      element.setAttribute(name, value);
    }
  }
  append(element, children);
  return element;
}

// disabled returns the attributes of an element without what it does.
function disabled(element, { href, onclick, ...others }) {
  const title = `The ${access.readOnly ? "read-only " : ""}token of this tab does not permit this.`;
  return element.nodeName === "A" ? { ...others, role: "link", "aria-disabled": "true", title } : { ...others, disabled: true, title };
}

// handlers is the key of the event handlers of an element, by type, which update copies to another element.
const handlers = Symbol("handlers");

function listen(element, type, handler) {
  element[handlers] ??= {};
  if (!element[handlers][type]) element.addEventListener(type, dispatch);
  element[handlers][type] = handler;
}

function dispatch(event) {
  event.currentTarget[handlers][event.type]?.call(event.currentTarget, event);
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== false && child != null) {
      element.append(child instanceof Node ? child : String(child));
    }
  }
}

// replace replaces the children of an element.
export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

// update changes the children of an element to those given, like replace, but keeps the nodes that are the same:
// elements with the same tag and data-key, and without a data-key those with the same tag at the same place. So a
// redraw keeps the focus, the selection, scroll positions, open <details> and the text in inputs.
export function update(element, ...children) {
  const wanted = document.createDocumentFragment();
  append(wanted, children);
  updateChildren(element, wanted);
}

function updateChildren(element, wanted) {
  const children = [...wanted.childNodes];
  const wantedKeys = new Set(children.map(keyOf));
  const keyed = new Map([...element.childNodes].filter((node) => keyOf(node) !== undefined).map((node) => [keyOf(node), node]));
  let at = element.firstChild;
  for (const child of children) {
    while (at && keyOf(at) !== undefined && !wantedKeys.has(keyOf(at))) at = removeAndNext(at);
    const same = keyOf(child) === undefined ? at : keyed.get(keyOf(child));
    if (!same || same.nodeName !== child.nodeName || keyOf(same) !== keyOf(child)) {
      element.insertBefore(child, at);
      continue;
    }
    keyed.delete(keyOf(child)); // a second child with the key is another element
    if (same === at) at = at.nextSibling;
    else element.insertBefore(same, at);
    updateNode(same, child);
  }
  while (at) at = removeAndNext(at);
}

const keyOf = (node) => node.dataset?.key;

function removeAndNext(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}

function updateNode(node, wanted) {
  if (node.nodeType !== Node.ELEMENT_NODE) {
    if (node.data !== wanted.data) node.data = wanted.data;
    return;
  }
  for (const { name } of [...node.attributes]) {
    if (!wanted.hasAttribute(name) && name !== "style" && name !== "open") node.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (name !== "style" && name !== "open" && node.getAttribute(name) !== value) node.setAttribute(name, value);
  }
  for (const [type, handler] of Object.entries(wanted[handlers] ?? {})) listen(node, type, handler);
  updateChildren(node, wanted);
}

// hideUntilComplete hides an element, the content of a page, until it has all of its parts, so that no part moves when
// another one arrives. It returns a function, which is called with the name of each part when that arrives or fails, any
// number of times. onShown is called when the element is shown: what depends on sizes is drawn then.
export function hideUntilComplete(element, parts, onShown) {
  const missing = new Set(parts);
  element.hidden = true;
  return (part) => {
    missing.delete(part);
    if (missing.size > 0 || !element.hidden) return;
    element.hidden = false;
    onShown?.();
  };
}

// checkbox creates a checkbox with its label. The form data has the name if it is checked.
export function checkbox(label, name) {
  return h("label", { class: "checkbox" }, h("input", { type: "checkbox", name }), " ", label);
}

// link creates a link to another page. main.js shows it without a reload.
export function link(path, ...children) {
  return h("a", { href: path }, children);
}

// linkIf is link to a page that the token of the tab may not permit.
export function linkIf(permitted, path, ...children) {
  return h("a", { href: path, permitted }, children);
}

// badge creates the label of a status, with a class by which style.css colours it.
export function badge(status) {
  return h("span", { class: "badge status-" + String(status).replace(/[^a-z]/gi, "") }, status);
}

// ago creates the text for the time since a time of the API, "5m12s ago". It changes while it is shown.
export function ago(time) {
  return time ? h("time", { "data-since": milliseconds(time), title: clock(time) }, age(time) + " ago") : "";
}

// clockAndAge creates the text of a time of the API with its age.
export function clockAndAge(time) {
  return h("span", null, clock(time), " (", ago(time), ")");
}

const agePause = 5000; // milliseconds between two updates of all ages
setInterval(() => {
  for (const element of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("time[data-since]"))) {
    const text = age(Number(element.dataset.since) * 1e6) + " ago";
    if (element.textContent !== text) element.textContent = text;
  }
}, agePause);

// table creates a table. columns: [{title, cell(row), class}]; key(row) returns the id of a row, which
// becomes its data-key.
export function table(label, columns, rows, key) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label, "data-key": label },
    h("table", null,
      h("thead", null, h("tr", null, columns.map((c) => h("th", { scope: "col", class: c.class }, columnTitle(c))))),
      h("tbody", null, rows.map((row) =>
        h("tr", { "data-key": key?.(row) }, columns.map((c) => h("td", { class: c.class }, c.cell(row))))))));
}

// columnTitle returns the title of a column of a table. A column of buttons and links has a title for screen readers only.
export function columnTitle(column) {
  return column.title || h("span", { class: "hidden-text" }, "Actions");
}

// facts creates a list of names and short values, which stand beside each other.
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}

// valueList creates a list of names and values, a line for each.
export function valueList(pairs) {
  return h("dl", { class: "values" }, pairs.filter(Boolean).map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));
}

// crumbs creates the path to a page: links to the objects that contain its object. parts: [[path, text]].
export function crumbs(parts) {
  return h("nav", { class: "crumbs", "aria-label": "Path", "data-key": "crumbs" }, parts.map(([path, text]) => link(path, h("bdi", null, text))));
}
