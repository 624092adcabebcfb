import assert from "node:assert/strict";
import test from "node:test";
import { address, bytes, duration, isSet, megahertz, milliseconds, shortID } from "../static/format.js";

test("duration has three digits or two units", () => {
  for (const [ms, want] of [
    [-5, "0s"], [0, "0s"], [0.05, "0.05ms"], [0.25, "0.25ms"], [1, "1ms"], [3.424, "3.42ms"], [34.26, "34.3ms"], [249.6, "250ms"], [1000, "1s"], [999.6, "1s"], [4200, "4.2s"], [4214, "4.21s"], [59_949, "59.9s"], [59_951, "1m"],
    [60_000, "1m"], [312_000, "5m12s"], [3_600_000, "1h"], [3_725_000, "1h2m"], [90_000_000, "1d1h"], [273_600_000, "3d4h"], [34_560_000_000, "1y1mo"],
  ]) assert.equal(duration(ms), want, `duration(${ms})`);
});

test("bytes uses binary units", () => {
  for (const [count, want] of [[0, "0 B"], [1023, "1023 B"], [1024, "1.0 KiB"], [1536, "1.5 KiB"], [3 << 20, "3.0 MiB"], [2 ** 50, "1024.0 TiB"]]) {
    assert.equal(bytes(count), want);
  }
});

test("address puts IPv6 hosts into brackets", () => {
  assert.equal(address("10.0.0.5", 80), "10.0.0.5:80");
  assert.equal(address("fe80::1", 80), "[fe80::1]:80");
  assert.equal(address("fe80::1", 0), "fe80::1");
});

test("times of the API are nanoseconds or text", () => {
  assert.equal(milliseconds(1_700_000_000_123_456_789), 1_700_000_000_123.4568);
  assert.equal(milliseconds("2026-01-02T03:04:05Z"), Date.UTC(2026, 0, 2, 3, 4, 5));
  for (const [time, want] of [["0001-01-01T00:00:00Z", false], ["", false], [0, false], [null, false], ["2026-01-02T03:04:05Z", true], [1, true]]) {
    assert.equal(isSet(time), want, String(time));
  }
});

test("short forms", () => {
  assert.equal(megahertz(3.14), "3.1 MHz");
  assert.equal(megahertz(1234.5), "1235 MHz");
  assert.equal(shortID("01234567-89ab-cdef-0123-456789abcdef"), "01234567");
  assert.equal(shortID(undefined), "");
});
