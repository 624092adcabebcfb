// @ts-check
// The differences between two versions of a job, as the API describes them. A sign in front of each line says what
// it is, so that the colour is not needed.

import { h } from "./dom.js";

const kinds = {
  Added: { sign: "+", word: "added", class: "added" },
  Deleted: { sign: "-", word: "removed", class: "removed" },
  Edited: { sign: "~", word: "changed", class: "changed" },
  None: { sign: " ", word: "", class: "same" },
};

// jobDiff shows the differences of a JobDiff of the API.
export function jobDiff(diff) {
  const lines = [
    ...parts(diff, 0),
    ...(diff.TaskGroups ?? []).flatMap((group) => block(group, `group ${quote(group.Name)}`, 0, updates(group.Updates), (indent) =>
      (group.Tasks ?? []).flatMap((task) => block(task, `task ${quote(task.Name)}`, indent, task.Annotations)))),
  ];
  if (lines.length === 0) return h("p", null, "Nothing changes.");
  return h("div", { class: "diff scroll", role: "region", tabindex: "0", "aria-label": "Differences" }, lines);
}

// countChanges returns how many fields, blocks, groups and tasks differ.
export function countChanges(diff) {
  const changed = (list) => (list ?? []).filter(({ Type }) => Type !== "None");
  const own = changed(diff.Fields).length + changed(diff.Objects).reduce((sum, object) => sum + Math.max(1, countChanges(object)), 0);
  return [...changed(diff.TaskGroups), ...changed(diff.Tasks)].reduce((sum, part) => sum + Math.max(1, countChanges(part)), own);
}

function block(part, title, indent, notes, inner) {
  if (part.Type === "None" && !notes?.length) return [];
  return [line(part.Type, indent, title + " {", notes), ...parts(part, indent + 1), ...(inner?.(indent + 1) ?? []), line("None", indent, "}")];
}

function parts(part, indent) {
  const fields = (part.Fields ?? []).filter((field) => field.Type !== "None").flatMap((field) => fieldLines(field, indent));
  return [...fields, ...(part.Objects ?? []).filter((object) => object.Type !== "None").flatMap((object) => block(object, object.Name, indent))];
}

function fieldLines(field, indent) {
  const { Type, Name, Old, New, Annotations } = field;
  if (Type !== "Edited" || !/\n/.test(Old + New)) return [line(Type, indent, fieldText(field), Annotations)];
  return [line(Type, indent, `${Name}:`, Annotations), ...changedLines(Old, New).map(([type, text]) => line(type, indent + 1, text))];
}

// changedLines returns the lines between the common beginning and end of two texts, and three lines of each of these.
function changedLines(before, after) {
  const [a, b] = [before.split("\n"), after.split("\n")];
  const most = Math.min(a.length, b.length), around = 3;
  let start = 0, end = 0;
  while (start < most && a[start] === b[start]) start++;
  while (end < most - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const lines = (type, texts) => texts.map((text) => [type, text]);
  return [
    ...lines("None", a.slice(Math.max(0, start - around), start)),
    ...lines("Deleted", a.slice(start, a.length - end)),
    ...lines("Added", b.slice(start, b.length - end)),
    ...lines("None", a.slice(a.length - end, a.length - end + around)),
  ];
}

function fieldText({ Type, Name, Old, New }) {
  if (Type === "Edited") return `${Name}: ${quote(Old)} → ${quote(New)}`;
  return `${Name}: ${quote(Type === "Deleted" ? Old : New)}`;
}

const quote = (text) => JSON.stringify(text ?? "");

// visible replaces characters that change the direction of the text around them: they could hide a difference.
function visible(text) {
  return text.replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

function line(type, indent, text, notes) {
  const kind = kinds[type] ?? kinds.None;
  return h("div", { class: kind.class },
    h("span", { "aria-hidden": "true" }, kind.sign + "  " + "  ".repeat(indent)),
    kind.word && h("span", { class: "hidden-text" }, kind.word + ": "),
    visible(text), notes?.length > 0 && h("span", { class: "dim" }, `  (${notes.join(", ")})`));
}

// effects lists what the scheduler would do with the allocations of each group.
export function effects(diff) {
  const groups = (diff.TaskGroups ?? []).map(({ Name, Updates }) => [Name, updates(Updates)]).filter(([, texts]) => texts.length > 0);
  return groups.length > 0 && h("ul", null, groups.map(([name, texts]) => h("li", null, `Group “${name}”: ${texts.join(", ")}`)));
}

// words of the numbers of allocations that the scheduler would create, stop and so on.
const updateWords = {
  create: "start", destroy: "stop", migrate: "move", canary: "start as canary", ignore: "keep",
  "in-place update": "update in place", "create/destroy update": "stop and replace",
};

function updates(counts) {
  return Object.entries(counts ?? {}).filter(([, n]) => n > 0).map(([name, n]) => `${updateWords[name] ?? name} ${n}`);
}
