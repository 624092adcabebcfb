import assert from "node:assert/strict";
import test from "node:test";
import "./document.js";

const { chart, sparkline } = await import("../static/chart.js");

const pathOf = (element, name) => element.all("path").find((path) => path.getAttribute("class") === name).getAttribute("d");
const moves = (path) => path.replace(/[^ML]/g, "");
const start = Date.UTC(2026, 0, 1), minute = 60e3;
const history = (values) => ({ start, end: start + values.length * minute, interval: minute, times: values.map((_, i) => start + i * minute), values });

function memory(limits) {
  return chart("Memory", { format: (value) => `${value} B`, base: 1024, limits });
}

test("a value that is missing is a gap", () => {
  const c = memory();
  assert.equal(c.isEmpty, true);
  c.setHistory(history([1, 2, null, 3, 4, 5]));
  assert.equal(c.isEmpty, false);
  assert.equal(moves(pathOf(c.element, "chart-line")), "MLMLL");
});

test("the axis ends at a round number above the highest value", () => {
  const c = memory();
  c.setHistory(history([100, 900]));
  assert.match(c.element.textContent, /1024 B512 B0/);
  const percent = chart("CPU", { format: (value) => `${value} %` });
  percent.setHistory(history([1, 33]));
  assert.match(percent.element.textContent, /50 %25 %0/);
});

test("a limit far above the values does not flatten them", () => {
  const near = memory([{ name: "limit", value: 300 }]), far = memory([{ name: "limit", value: 1e6 }, { name: "unset", value: 0 }]);
  for (const c of [near, far]) c.setHistory(history([100, 100]));
  assert.notEqual(pathOf(near.element, "chart-limit"), "");
  assert.equal(pathOf(far.element, "chart-limit"), "");
  assert.match(far.element.textContent, /limit 1000000 B/, "its value is shown as text");
  assert.doesNotMatch(far.element.textContent, /unset/);
});

test("live values replace those that are older than the period", () => {
  const c = memory();
  c.setHistory(history([1, 2, 3]));
  c.add(start + 2 * minute + 20e3, 4);
  assert.equal(moves(pathOf(c.element, "chart-line")), "MLLL");
  c.add(start + 60 * minute, 5);
  assert.equal(moves(pathOf(c.element, "chart-line")), "M");
});

test("a sparkline shows a single value as a dot", () => {
  const d = (values) => sparkline(values).all("path")[0].getAttribute("d");
  assert.equal(moves(d([1, 2, 3])), "MLL");
  assert.match(d([null, 5, null]), /^M[\d. ]+h2$/);
  assert.equal(d([]), "");
});
