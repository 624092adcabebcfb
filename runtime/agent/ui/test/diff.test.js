import assert from "node:assert/strict";
import test from "node:test";
import "./document.js";

const { countChanges, effects, jobDiff } = await import("../static/diff.js");

const field = (Type, Name, Old, New) => ({ Type, Name, Old, New });
const diff = {
  Type: "Edited", Fields: [field("Edited", "Priority", "50", "60"), field("None", "Region", "global", "global")],
  Objects: [{ Type: "Deleted", Name: "Periodic", Fields: [field("Deleted", "Spec", "@daily", "")] }],
  TaskGroups: [{
    Type: "Edited", Name: "web", Updates: { "create/destroy update": 2, ignore: 0 },
    Fields: [field("Added", "Meta[a]", "", "b")],
    Tasks: [{ Type: "None", Name: "same" }, { Type: "Edited", Name: "main", Annotations: ["forces create/destroy update"], Fields: [field("Edited", "Env[A]", "1", "\u202e2")] }],
  }],
};

test("the difference has a sign and a word for each line", () => {
  assert.deepEqual(jobDiff(diff).childNodes.map((line) => line.textContent), [
    '~  changed: Priority: "50" → "60"',
    "-  removed: Periodic {",
    '-    removed: Spec: "@daily"',
    "   }",
    '~  changed: group "web" {  (stop and replace 2)',
    '+    added: Meta[a]: "b"',
    '~    changed: task "main" {  (forces create/destroy update)',
    '~      changed: Env[A]: "1" → "\\u202e2"',
    "     }",
    "   }",
  ]);
  assert.equal(jobDiff({ Type: "None" }).textContent, "Nothing changes.");
});

test("a changed text of several lines is shown by its lines", () => {
  const text = (middle) => ["1", "2", "3", "4", "5", ...middle, "6", "7", "8", "9"].join("\n");
  const edited = { Type: "Edited", Fields: [field("Edited", "EmbeddedTmpl", text(["a"]), text(["b", "\u202ec"])), field("Edited", "Data", "", "x\n")] };
  assert.deepEqual(jobDiff(edited).childNodes.map((line) => line.textContent), [
    "~  changed: EmbeddedTmpl:",
    "     3", "     4", "     5",
    "-    removed: a",
    "+    added: b", "+    added: \\u202ec",
    "     6", "     7", "     8",
    "~  changed: Data:",
    "+    added: x",
    "     ",
  ]);
});

test("a block without fields counts as one change", () => {
  assert.equal(countChanges(diff), 4);
  assert.equal(countChanges({ TaskGroups: [{ Type: "Added", Name: "new" }] }), 1);
  assert.equal(countChanges({}), 0);
});

test("what the scheduler would do", () => {
  assert.deepEqual(effects(diff).all("li").map((li) => li.textContent), ["Group “web”: stop and replace 2"]);
  assert.equal(effects({ TaskGroups: [{ Name: "web", Updates: { ignore: 0 } }] }), false);
});
