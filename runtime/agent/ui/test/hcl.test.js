import assert from "node:assert/strict";
import test from "node:test";
import { lines, tokens } from "../static/hcl.js";

// kinds returns the tokens with a kind.
const kinds = (text) => tokens(text).filter(([kind]) => kind).map(([kind, part]) => `${kind} ${part}`);

test("the parts of HCL", () => {
  for (const [text, want] of [
    ['job "a" {\n  type = "batch"\n}', ["block job", 'string "a"', "name type", 'string "batch"']],
    ["group { count = 2 }", ["block group", "name count", "number 2"]],
    ['template "a" b {', ["block template", 'string "a"']],
    ["a = true && b == null", ["name a", "constant true", "constant null"]],
    ["a = 1.5e-3", ["name a", "number 1.5e-3"]],
    ['a = max(length("x"), 2)', ["name a", "function max", "function length", 'string "x"', "number 2"]],
    ['env = { A = "1", B : 2 }', ["name env", "name A", 'string "1"', "name B", "number 2"]],
    ["# c\n// d\na = 1 /* e\nf */ b", ["comment # c", "comment // d", "name a", "number 1", "comment /* e\nf */"]],
    ["a /* open", ["comment /* open"]],
    ["kill_timeout-x2 = 1", ["name kill_timeout-x2", "number 1"]],
    ["naïve = 1", ["name naïve", "number 1"]],
  ]) assert.deepEqual(kinds(text), want, text);
});

test("strings have interpolations", () => {
  for (const [text, want] of [
    ['"a${b}c"', ['string "a', "template ${b}", 'string c"']],
    ['"${f("}")}"', ['string "', 'template ${f("}")}', 'string "']],
    ['"$${no} %{ if a }"', ['string "$${no} ', "template %{ if a }", 'string "']],
    ['"\\"${a}"', ['string "\\"', "template ${a}", 'string "']],
    ['"open\nb = 1', ['string "open', "name b", "number 1"]],
    ['"open ${a\nb = 1', ['string "open ', "template ${a", "name b", "number 1"]],
  ]) assert.deepEqual(kinds(text), want, text);
});

test("a heredoc ends with its marker alone on a line", () => {
  assert.deepEqual(kinds("a = <<EOF\nx EOF ${b}\n# no comment\n  EOF\nc = 1"),
    ["name a", "string <<EOF\nx EOF ", "template ${b}", "string \n# no comment\n  EOF", "name c", "number 1"]);
  assert.deepEqual(kinds("a = <<-END\nopen"), ["name a", "string <<-END\nopen"]);
  assert.deepEqual(kinds("a = 1 << 2"), ["name a", "number 1", "number 2"]);
});

test("the parts of JSON", () => {
  assert.deepEqual(kinds('{"Job": {"ID": "a", "Count": 3, "Stop": false}}'),
    ['name "Job"', 'name "ID"', 'string "a"', 'name "Count"', "number 3", 'name "Stop"', "constant false"]);
});

test("each text is the text of its parts", () => {
  const pieces = ['"', "${", "}", "{", "<<A\n", "A\n", "\n", "\\", "a", "=", " ", "#", "/*", "*/", "1", "$", "%{", "(", ":", "é", "\u{1f600}", "\r\n", "`"];
  let seed = 1;
  const next = (n) => (seed = (seed * 48271) % 2147483647) % n;
  for (let i = 0; i < 5000; i++) {
    const text = Array.from({ length: next(12) }, () => pieces[next(pieces.length)]).join("");
    assert.equal(tokens(text).map(([, part]) => part).join(""), text, JSON.stringify(text));
    assert.equal(lines(text).map((line) => line.map(([, part]) => part).join("")).join("\n"), text, JSON.stringify(text));
  }
});

test("a text with deep nesting and without ends", () => {
  for (const piece of ['"${', "${", "<<A\n", "/*", '"\\', "{", "a {"]) {
    const text = piece.repeat(30_000);
    assert.equal(tokens(text).map(([, part]) => part).join(""), text, piece);
  }
});

test("a part over several lines has its kind on each", () => {
  assert.deepEqual(lines("/* a\n\nb */"), [[["comment", "/* a"]], [], [["comment", "b */"]]]);
});
