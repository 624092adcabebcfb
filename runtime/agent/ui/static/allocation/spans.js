// @ts-check
// What the spans of a time line mean. No function here has effects.

import { duration, isSet } from "../format.js";

// Kinds, in the order of their lanes.
export const kinds = { run: "runs", wait: "waits", hook: "hooks", driver: "driver calls", event: "events", internal: "internals", alloc: "periods", gap: "dropped" };

// A span of the page: {id, kind, name, task, plugin, internal, start, end, result, error, failed, dropped, runEnd, title}. start and end are
// milliseconds since 1970; end is undefined if the span lasts, or unknownEnd is true and end is the last possible
// time. task is "" for the allocation.

// fromAPI converts the spans of the API. ended is true if no task of the allocation can run again.
export function fromAPI(spans, ended) {
  const all = (spans ?? []).map((s) => ({
    id: s.ID, kind: s.Kind, name: s.Name, task: s.Task ?? "", plugin: s.Plugin ?? "", start: exactTime(s.Start),
    end: isSet(s.End) ? Math.max(exactTime(s.End), exactTime(s.Start)) : undefined,
    internal: s.Internal ?? false, result: s.Result ?? "", error: s.Error ?? "", failed: s.Failed ?? false, dropped: s.Dropped ?? 0,
    runEnd: s.RunEnd,
  }));
  const last = Math.max(...all.map((s) => s.end ?? s.start));
  for (const s of all) {
    s.title = titleOf(s);
    if (s.end !== undefined) continue;
    // A later span of the same call means that the agent was killed during this one.
    const later = all.find((o) => o.start > s.start && o.kind === s.kind && o.task === s.task && o.plugin === s.plugin && (s.kind === "run" || o.name === s.name));
    if (!later && !ended) continue;
    s.end = later?.start ?? last;
    s.unknownEnd = true;
  }
  return all;
}

// exactTime returns milliseconds since 1970 with microseconds in the fraction, which Date does not have: most hooks are
// shorter than a millisecond.
function exactTime(text) {
  return Date.parse(text.replace(/\.\d+/, "")) + Number(/\.\d+/.exec(text)?.[0] ?? 0) * 1000;
}

function titleOf(s) {
  switch (s.kind) {
    case "hook": return `${s.plugin} (${s.name})`;
    case "driver": return `${s.plugin}: ${s.name}`;
    case "wait": return s.name === "other tasks" ? "waits for other tasks" : s.name;
    case "run": return runTitle(s);
    case "gap": return `${s.dropped} spans are not kept`;
  }
  return s.name;
}

// runTitle returns how a process has ended, in few characters: a crash loop is a row of them.
function runTitle({ end, result, runEnd }) {
  if (end === undefined) return "process";
  const exit = runEnd ?? runEndOfEarlierBuild(result);
  if (!exit || exit.StatusUnknown) return result || "exit status unknown";
  return exit.Signal ? "signal " + exit.Signal : "exit " + (exit.ExitCode ?? 0);
}

// runEndOfEarlierBuild returns the exit status in the result of a run that an agent without RunEnd has recorded.
function runEndOfEarlierBuild(result) {
  const code = /Exit Code: (\d+)/.exec(result)?.[1];
  return code && { ExitCode: Number(code), Signal: Number(/Signal: (\d+)/.exec(result)?.[1] ?? 0) };
}

// lengthOf returns the duration of a span in milliseconds up to now.
export function lengthOf(s, now) {
  return (s.end ?? Math.max(now, s.start)) - s.start;
}

// textOf returns the duration of a span for people.
export function textOf(s, now) {
  if (s.kind === "event") return "";
  return duration(lengthOf(s, now)) + (s.unknownEnd ? " or less, the end was not recorded" : s.end === undefined ? " so far" : "");
}

// lanes groups spans: [{task, kind, rows: [[span]]}], the allocation first, then the tasks by their first
// span. The spans of a row do not overlap.
export function lanes(spans) {
  const tasks = new Map([["", new Map()]]);
  for (const s of spans) {
    if (!tasks.has(s.task)) tasks.set(s.task, new Map());
    const byKind = tasks.get(s.task);
    const kind = s.internal ? "internal" : s.kind;
    if (!byKind.has(kind)) byKind.set(kind, []);
    const rows = byKind.get(kind);
    let row = s.kind === "event" ? rows[0] : rows.find((r) => r.end <= s.start);
    if (!row) rows.push(row = []);
    row.push(s);
    row.end = s.end ?? Infinity;
  }
  return [...tasks].flatMap(([task, byKind]) => Object.keys(kinds).filter((kind) => byKind.has(kind)).map((kind) => ({ task, kind, rows: byKind.get(kind) })));
}

// isFolded reports whether a span is hidden until the user wants to see what the agent does by itself: the short hooks of each
// allocation, and its periods. shownIDs are the spans that sentences are about.
export function isFolded(s, shownIDs) {
  return (s.internal || s.kind === "alloc") && !s.error && !shownIDs.has(s.id);
}

// sentenceText returns a sentence of the API at a time, as the command line prints it.
export function sentenceText(sentence, now) {
  return sentence.Text + (isSet(sentence.Since) ? " for " + duration(now - exactTime(sentence.Since)) : "");
}

// exitOf returns the run whose exit a user looks for: the last one of a task that has failed, or that has ended. It is undefined
// if there is none.
export function exitOf(spans, task) {
  const runs = spans.filter((s) => s.kind === "run" && s.task === task && s.end !== undefined);
  return runs.findLast((s) => s.failed) ?? runs.at(-1);
}

// nextStart returns when a task was started again after a span of it, undefined if it was not.
export function nextStart(spans, { task, end }) {
  return spans.find((s) => s.task === task && s.start >= end && (s.kind === "run" || s.kind === "driver" && s.name === "StartTask"))?.start;
}
