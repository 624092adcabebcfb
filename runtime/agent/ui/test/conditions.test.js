import assert from "node:assert/strict";
import test from "node:test";
import "./document.js";

const { conditionLines } = await import("../static/conditions.js");

test("without conditions all is well, at the time of the last look", () => {
  const [line, ...more] = conditionLines({ LookedAt: "2026-01-02T03:04:05Z", Conditions: [] });
  assert.match(line.textContent, /^All is well at .+:05/);
  assert.deepEqual(more, []);
});

test("each condition has a line with its severity, summary, start, remedy and commands", () => {
  const hourAgo = new Date(Date.now() - 3600e3).toISOString();
  const lines = conditionLines({ LookedAt: "2026-01-02T03:04:05Z", Conditions: [
    { Kind: "DiskFull", Severity: "error", Summary: "The disk is full", Remedy: "Remove files", Commands: ["df -h /", "rm x"], Since: hourAgo },
    { Kind: "MemoryLow", Severity: "warning", Summary: "Memory is low", Remedy: "Stop a job", Since: hourAgo },
  ] });
  assert.deepEqual(lines.map((line) => line.textContent.replace(/Since [^.]+\./, "Since TIME.")), [
    "Error: The disk is full. Since TIME. Remove files.df -h /rm x",
    "Warning: Memory is low. Since TIME. Stop a job.",
  ]);
  assert.equal(lines[0].getAttribute("class"), "condition condition-error");
});
