import assert from "node:assert/strict";
import test from "node:test";
import "./document.js";

const { parseTimes } = await import("../static/tasklog.js");

// varint returns a number as in files of arrival times.
function varint(n) {
  const bytes = [];
  for (; n >= 128; n = Math.floor(n / 128)) bytes.push((n % 128) + 128);
  return [...bytes, n];
}

// record is a complete record: a zero byte, a time, and an offset plus 1.
const record = (time, offset) => [0, ...varint(time), ...varint(offset + 1)];

test("arrival times are sums of differences", () => {
  assert.deepEqual(parseTimes(Uint8Array.from([...record(1e12, 0), ...varint(5), ...varint(300)])), [{ offset: 0, time: 1e12 }, { offset: 300, time: 1e12 + 5 }]);
});

test("bytes before the first complete record are skipped", () => {
  assert.deepEqual(parseTimes(Uint8Array.from([7, 9, ...record(1e12, 10)])), [{ offset: 10, time: 1e12 }]);
  assert.deepEqual(parseTimes(Uint8Array.from([7, 9])), []);
});

test("a damaged record ends at the next complete one", () => {
  assert.deepEqual(parseTimes(Uint8Array.from([...record(1e12, 0), 0xff, 0xff, ...record(2e12, 50)])), [{ offset: 0, time: 1e12 }, { offset: 50, time: 2e12 }]);
});

test("a truncated log file has new times", () => {
  assert.deepEqual(parseTimes(Uint8Array.from([...record(1e12, 0), ...record(1e12 + 1, 90), ...record(2e12, 0)])), [{ offset: 0, time: 2e12 }]);
});
