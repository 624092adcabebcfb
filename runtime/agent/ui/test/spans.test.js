import assert from "node:assert/strict";
import test from "node:test";
import { exitOf, fromAPI, lanes, sentenceText, textOf } from "../static/allocation/spans.js";

const at = (seconds) => `2026-01-01T00:00:${String(Math.floor(seconds)).padStart(2, "0")}.${String(Math.round((seconds % 1) * 1e6)).padStart(6, "0")}Z`;
const span = (Kind, Name, from, to, more) => ({ ID: `${Kind}${Name}${from}`, Kind, Name, Task: "web", Start: at(from), End: to === undefined ? "0001-01-01T00:00:00Z" : at(to), ...more });
const second = (n) => Date.parse(at(n));

test("times have microseconds", () => {
  const [s] = fromAPI([span("hook", "prestart", 1.000001, 1.000251)], false);
  assert.equal(Math.round((s.end - s.start) * 1000), 250);
});

test("a span of a killed agent ends before its repetition", () => {
  const [killed, repeated] = fromAPI([span("hook", "prestart", 1, undefined, { Plugin: "x" }), span("hook", "prestart", 5, 6, { Plugin: "x" })], false);
  assert.equal(killed.end, repeated.start);
  assert.equal(textOf(killed, second(9)), "4s or less, the end was not recorded");
});

test("an open span lasts until the allocation has ended", () => {
  const spans = [span("run", "run", 1), span("event", "Started", 2, 2)];
  assert.equal(textOf(fromAPI(spans, false)[0], second(9)), "8s so far");
  assert.equal(textOf(fromAPI(spans, true)[0], second(9)), "1s or less, the end was not recorded");
});

test("the spans of a row do not overlap", () => {
  const spans = fromAPI([span("hook", "a", 1, 3), span("hook", "b", 2, 4), span("hook", "c", 3, 5), span("alloc", "start", 0, 9, { Task: "" })], false);
  const found = lanes(spans).map(({ task, kind, rows }) => [task, kind, rows.map((row) => row.map((s) => s.name))]);
  assert.deepEqual(found, [["", "alloc", [["start"]]], ["web", "hook", [["a", "c"], ["b"]]]]);
});

test("a sentence without an end has its duration until now", () => {
  assert.equal(sentenceText({ Text: "waits for migrate", Since: at(1) }, second(4)), "waits for migrate for 3s");
  assert.equal(sentenceText({ Text: "failed", Since: "0001-01-01T00:00:00Z" }, second(4)), "failed");
});

test("the title of a run has its exit status", () => {
  const title = (more) => fromAPI([span("run", "a", 1, 2, more)], false)[0].title;
  assert.equal(title({ RunEnd: { ExitCode: 3, Error: "Exit Code: 7, Signal: 9" }, Result: "Exit Code: 7, Signal: 9" }), "exit 3");
  assert.equal(title({ RunEnd: { Success: true }, Result: "" }), "exit 0");
  assert.equal(title({ RunEnd: { ExitCode: 137, Signal: 9 }, Result: "x" }), "signal 9");
  assert.equal(title({ RunEnd: { StatusUnknown: true }, Result: "exit status unknown: x" }), "exit status unknown: x");
  assert.equal(title({ Result: "Exit Code: 137, Signal: 9" }), "signal 9"); // of an earlier build
  assert.equal(title({ Result: "Exit Code: 4" }), "exit 4");
});

test("the exit of a task is that of its last failed run", () => {
  const spans = fromAPI([span("run", "a", 1, 2, { Failed: true }), span("run", "b", 3, 4), span("run", "c", 5)], false);
  assert.equal(exitOf(spans, "web").name, "a");
  assert.equal(exitOf(spans, "other"), undefined);
});
