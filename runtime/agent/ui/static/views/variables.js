// @ts-check
// Variables: their list, and the items of each.

import { get, put, send, watch } from "../api.js";
import { ask } from "../dialog.js";
import { ago, clockAndAge, facts, h, link, replace, table, update } from "../dom.js";
import { clock } from "../format.js";
import { go, showError } from "../page.js";

// show shows the paths of Nomad's page: path/PREFIX, new, var/PATH@NAMESPACE and var/PATH@NAMESPACE/edit.
export function show(main, parameters, signal) {
  const path = parameters.path ?? "";
  if (path === "new") return edit(main, { Path: "", Namespace: "default", Items: { "": "" }, ModifyIndex: 0 });
  /** @type {any} */
  const found = /^var\/(?<path>.+)@(?<namespace>[^@/]+)(?<edit>\/edit)?$/.exec(path)?.groups;
  if (!found) return showList(main, path.replace(/^path\/?/, ""), signal);
  return found.edit ? showEdit(main, found, signal) : showVariable(main, found, signal);
}

const encodePath = (path) => path.split("/").map(encodeURIComponent).join("/");
const pagePath = (v) => `/ui/variables/var/${encodePath(v.Path)}@${encodeURIComponent(v.Namespace)}`;
const apiPath = (path, namespace) => `/v1/var/${encodePath(path)}?namespace=${encodeURIComponent(namespace)}`;

function showList(main, prefix, signal) {
  document.title = "Variables – nomad-lite";
  let all = [];
  const list = h("div");
  const filter = h("input", { type: "search", value: prefix, "aria-label": "Filter by path", placeholder: "filter", oninput: () => draw() });
  main.append(h("h1", null, "Variables"), h("div", { class: "toolbar" }, filter, link("/ui/variables/new", "New variable")), list);
  function draw() {
    const rows = all.filter((v) => v.Path.toLowerCase().includes(filter.value.toLowerCase()));
    update(list, rows.length === 0 ? h("p", null, all.length ? "No variable has this path." : "No variables.") : table("Variables", [
      { title: "Path", cell: (v) => link(pagePath(v), v.Path) },
      { title: "Namespace", cell: (v) => v.Namespace },
      { title: "Changed", cell: (v) => ago(v.ModifyTime) },
      { title: "Lock", cell: (v) => v.Lock && "held" },
    ], rows, (v) => v.Namespace + "/" + v.Path));
  }
  return watch("/v1/vars?namespace=*", signal, (variables) => {
    all = variables.sort((a, b) => (a.Path < b.Path ? -1 : 1));
    draw();
  }, showError);
}

function showVariable(main, { path, namespace }, signal) {
  document.title = `${path} – nomad-lite`;
  const page = h("div"), revealed = new Set();
  main.append(page);
  return watch(apiPath(path, namespace), signal, (variable) => {
    const draw = () => update(page, drawVariable(variable, revealed, draw));
    draw();
  }, showError);
}

const mask = "••••••••";

// drawVariable shows the items of a variable. The values that are not in revealed are not on the page.
function drawVariable(variable, revealed, draw) {
  const items = Object.entries(variable.Items ?? {});
  const toggle = (names, shown) => {
    names.forEach((name) => (shown ? revealed.add(name) : revealed.delete(name)));
    draw();
  };
  const isAllShown = items.every(([name]) => revealed.has(name));
  return [
    h("h1", null, variable.Path),
    h("div", { class: "toolbar" }, link(pagePath(variable) + "/edit", "Edit"),
      h("button", { onclick: () => toggle(items.map(([name]) => name), !isAllShown) }, isAllShown ? "Hide all" : "Reveal all"),
      h("button", { class: "danger", onclick: () => askDelete(variable) }, "Delete")),
    facts([
      ["Namespace", variable.Namespace], ["Created", clock(variable.CreateTime)], ["Changed", clockAndAge(variable.ModifyTime)],
      variable.Lock && ["Lock", `held, TTL ${variable.Lock.TTL}`],
    ]),
    h("h2", null, "Items"),
    table("Items", [
      { title: "Name", cell: ([name]) => h("code", null, name) },
      { title: "Value", cell: ([name, value]) => h("pre", { class: "value" }, revealed.has(name) ? value : mask) },
      { title: "", cell: ([name]) => {
        const shown = revealed.has(name);
        return h("button", { "aria-label": (shown ? "Hide " : "Reveal ") + name, onclick: () => toggle([name], !shown) }, shown ? "Hide" : "Reveal");
      } },
    ], items, ([name]) => name),
  ];
}

function askDelete(variable) {
  ask({
    title: `Delete the variable ${variable.Path}?`, text: "Its items are lost. Tasks that read them fail, or restart, as their templates say.", action: "Delete", danger: true,
    run: async (form, closed) => {
      try {
        await send(`${apiPath(variable.Path, variable.Namespace)}&cas=${variable.ModifyIndex}`, { method: "DELETE" });
      } catch (err) {
        throw explain(err);
      }
      if (!closed.aborted) go("/ui/variables");
    },
  });
}

// explain replaces the error of a deletion that was rejected, because the variable has changed. The page below the dialog
// has followed the change.
function explain(err) {
  return err.status === 409 ? new Error("The variable was changed in the meantime. Cancel, and delete what the page shows then.") : err;
}

// differentItems returns the names of the items that only one of two variables has, or that differ.
function differentItems(a, b) {
  return [...new Set([...Object.keys(a), ...Object.keys(b)])].filter((name) => a[name] !== b[name]).sort();
}

async function showEdit(main, { path, namespace }, signal) {
  edit(main, await get(apiPath(path, namespace), signal));
}

// edit fills the page with a form. A ModifyIndex of 0 is a new variable. The change is rejected if the variable was
// changed after it was read.
function edit(main, variable) {
  const isNew = variable.ModifyIndex === 0;
  document.title = (isNew ? "New variable" : variable.Path) + " – nomad-lite";
  const path = h("input", { id: "variable-path", value: variable.Path, required: true, disabled: !isNew });
  const namespace = h("input", { id: "variable-namespace", value: variable.Namespace, required: true, disabled: !isNew });
  const rows = h("div", { class: "items" });
  const error = h("p", { role: "alert", class: "error" });
  const add = (name, value) => rows.append(itemRow(name, value));
  Object.entries(variable.Items ?? {}).forEach(([name, value]) => add(name, value));
  // showConflict offers what can be done after a change by somebody else, whose result is current.
  function showConflict(current, mine) {
    const names = differentItems(current.Items ?? {}, mine.Items);
    replace(error, "The variable was changed in the meantime. ", names.length ? ["These items differ from yours: ", names.map((name, i) => [i > 0 && ", ", h("bdi", null, name)]), "."] : "It has the same items as yours.",
      h("span", { class: "toolbar" },
        h("button", { onclick: () => { variable.ModifyIndex = current.ModifyIndex; } }, "Save over it"),
        current.ModifyIndex > 0 && h("button", { type: "button", onclick: () => edit(main, current) }, "Edit the stored variable")));
  }
  const back = () => go(isNew ? "/ui/variables" : pagePath(variable));
  replace(main, h("h1", null, isNew ? "New variable" : "Edit " + variable.Path), h("form", {
    class: "variable",
    onsubmit: async (event) => {
      event.preventDefault();
      const stored = { Path: path.value.trim(), Namespace: namespace.value.trim() };
      try {
        stored.Items = readItems(rows);
        go(pagePath(await put(`${apiPath(stored.Path, stored.Namespace)}&cas=${variable.ModifyIndex}`, stored)));
      } catch (err) {
        if (err.status === 409) showConflict(JSON.parse(err.message), stored);
        else error.textContent = err.message;
      }
    },
  },
  h("label", { for: "variable-path" }, "Path"), path, h("label", { for: "variable-namespace" }, "Namespace"), namespace,
  h("h2", null, "Items"), rows,
  h("div", { class: "toolbar" }, h("button", { type: "button", onclick: () => { add("", ""); rows.lastChild.querySelector("input").focus(); } }, "Add an item")),
  error, h("div", { class: "toolbar" }, h("button", null, "Save"), h("button", { type: "button", onclick: back }, "Cancel"))));
  (isNew ? path : rows.querySelector("textarea"))?.focus();
}

function itemRow(name, value) {
  const area = h("textarea", { class: "mono", "aria-label": "Value", rows: Math.min(10, value.split("\n").length), spellcheck: "false" });
  area.value = value;
  const row = h("div", { class: "item" }, h("input", { class: "mono", "aria-label": "Name", value: name, required: true, autocomplete: "off" }), area,
    h("button", { type: "button", "aria-label": "Remove the item " + name, onclick: () => row.remove() }, "Remove"));
  return row;
}

function readItems(rows) {
  const items = {};
  for (const row of rows.children) {
    const name = row.querySelector("input").value;
    if (Object.hasOwn(items, name)) throw new Error(`Two items have the name ${name}.`);
    items[name] = row.querySelector("textarea").value;
  }
  if (Object.keys(items).length === 0) throw new Error("A variable needs at least one item.");
  return items;
}
