import assert from "node:assert/strict";
import test from "node:test";
import { parse, plainText } from "../static/ansi.js";

// styles returns the text of each segment with what its style sets.
const styles = (line) => parse(line).map(({ text, style }) => [text, Object.fromEntries(Object.entries(style).filter(([, value]) => value))]);

test("colours and flags", () => {
  for (const [line, want] of [
    ["plain", [["plain", {}]]],
    ["\x1b[1;31mred\x1b[0m then", [["red", { bold: true, color: "1" }], [" then", {}]]],
    ["\x1b[1;2mboth\x1b[22mnone", [["both", { bold: true, dim: true }], ["none", {}]]],
    ["\x1b[97;104mbright", [["bright", { color: "15", background: "12" }]]],
    ["\x1b[38;5;9mindexed", [["indexed", { color: "9" }]]],
    ["\x1b[38;5;196mcube", [["cube", { color: "rgb(255,0,0)" }]]],
    ["\x1b[48;5;232mgrey", [["grey", { background: "rgb(8,8,8)" }]]],
    ["\x1b[38;2;1;999;3;4mtrue", [["true", { color: "rgb(1,255,3)", underline: true }]]],
    ["\x1b[mreset", [["reset", {}]]],
  ]) assert.deepEqual(styles(line), want, JSON.stringify(line));
});

test("sequences that are no colours are removed", () => {
  for (const [line, want] of [
    ["a\x1b[2Kb", "ab"], ["\x1b]0;title\x07text", "text"], ["\x1b]8;;http://x\x1b\\link", "link"], ["a\x1bPunterminated", "a"],
    ["\x9b31mred", "red"], ["end\r", "end"], ["\x1b(Bx", "x"],
  ]) assert.equal(plainText(line), want, JSON.stringify(line));
});

test("characters without a form are shown as text", () => {
  assert.equal(plainText("a\x00b\x7f"), "a␀b␡");
  assert.equal(plainText("a\u202eb"), "a<U+202E>b");
  assert.equal(plainText("tab\tstays"), "tab\tstays");
});

test("a line with many colours keeps its text", () => {
  const line = "\x1b[31mx\x1b[32my".repeat(2000);
  assert.equal(plainText(line), "xy".repeat(2000));
  assert.ok(parse(line).length <= 501, `${parse(line).length} segments`);
});
