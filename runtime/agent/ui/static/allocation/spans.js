// @ts-check
// What the spans of a time line mean. No function here has effects.

import { duration, isSet } from "../format.js";

// Kinds, in the order of their lanes.
export const kinds = { alloc: "periods", hook: "hooks", driver: "driver calls", wait: "waits", run: "runs", event: "events", gap: "dropped" };

// A span of the page: {id, kind, name, task, plugin, start, end, open, result, error, dropped, title}. start and end are
// milliseconds since 1970; end is undefined if the span lasts, or unknownEnd is true and end is the last possible
// time. task is "" for the allocation.

// fromAPI converts the spans of the API. ended is true if no task of the allocation can run again.
export function fromAPI(spans, ended) {
  const all = (spans ?? []).map((s) => ({
    id: s.ID, kind: s.Kind, name: s.Name, task: s.Task ?? "", plugin: s.Plugin ?? "", start: exactTime(s.Start),
    end: isSet(s.End) ? Math.max(exactTime(s.End), exactTime(s.Start)) : undefined,
    result: s.Result ?? "", error: s.Error ?? "", dropped: s.Dropped ?? 0,
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
    case "run": return "process";
    case "gap": return `${s.dropped} spans are not kept`;
  }
  return s.name;
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
    if (!byKind.has(s.kind)) byKind.set(s.kind, []);
    const rows = byKind.get(s.kind);
    let row = s.kind === "event" ? rows[0] : rows.find((r) => r.end <= s.start);
    if (!row) rows.push(row = []);
    row.push(s);
    row.end = s.end ?? Infinity;
  }
  return [...tasks].flatMap(([task, byKind]) => Object.keys(kinds).filter((kind) => byKind.has(kind)).map((kind) => ({ task, kind, rows: byKind.get(kind) })));
}

// waitsFor returns the names of the tasks for which a task waits by the order of Nomad's lifecycle.
function waitsFor(name, tasks, states) {
  const hook = (t) => t.Lifecycle?.Hook ?? "";
  const mine = hook(tasks.find((t) => t.Name === name) ?? {});
  const isDead = (t) => states?.[t.Name]?.State === "dead", runs = (t) => states?.[t.Name]?.State === "running";
  return tasks.filter((t) => t.Name !== name && (
    mine === "" ? hook(t) === "prestart" && !isDead(t) && !(t.Lifecycle.Sidecar && runs(t)) :
    mine === "poststart" ? hook(t) === "" && !runs(t) :
    mine === "poststop" ? hook(t) === "" && !isDead(t) : false)).map((t) => t.Name);
}

// summary describes each task: [{task, state, text, span, slowest, startText}]. state is a status of badge, and span is
// the span that the text is about, if there is one. slowest is the longest span before the last start, and startText its
// description; both are undefined if there was no start.
export function summary(spans, tasks, states, now) {
  return tasks.map(({ Name: task }) => {
    const own = spans.filter((s) => s.task === task);
    const start = lastStart(own, spans, now);
    return { task, ...situation(task, own, spans, tasks, states, now), slowest: start.slowest, startText: start.text };
  });
}

function situation(task, own, spans, tasks, states, now) {
  const open = own.filter((s) => s.end === undefined);
  const find = (kind) => open.findLast((s) => s.kind === kind);
  const since = (s) => duration(lengthOf(s, now));
  const run = find("run"), wait = find("wait"), hook = find("hook"), call = find("driver");
  if (run) return { state: "running", text: `for ${since(run)}`, span: run };
  if (hook) return { state: "pending", text: `waits for the hook ${hook.plugin} (${hook.name}), which has been running for ${since(hook)}`, span: hook };
  if (call) return { state: "pending", text: `waits for ${call.name} of the driver ${call.plugin} for ${since(call)}`, span: call };
  if (wait?.name === "restart delay") return { state: "pending", text: `waits for its restart delay for ${since(wait)}${lastFailure(own)}`, span: wait };
  if (wait) {
    const names = waitsFor(task, tasks, states);
    return { state: "pending", text: `waits for ${names.length === 0 ? "other tasks" : (names.length === 1 ? "the task " : "the tasks ") + names.join(", ")} for ${since(wait)}`, span: wait };
  }
  const setup = spans.findLast((s) => s.task === "" && s.kind === "hook" && s.end === undefined);
  if (states?.[task]?.State !== "dead" && setup) {
    return { state: "pending", text: `waits for the hook ${setup.plugin} (${setup.name}) of the allocation, which has been running for ${since(setup)}`, span: setup };
  }
  const ran = own.findLast((s) => s.kind === "run"), failed = own.findLast((s) => s.error);
  if (states?.[task]?.State !== "dead") return { state: "pending", text: "has not started" + lastFailure(own), span: failed };
  if (ran) return { state: states[task].Failed ? "failed" : "complete", text: `${ran.result || "exit status unknown"}${lastFailure(own)}`, span: ran };
  return { state: states[task].Failed ? "failed" : "complete", text: "never started" + (lastFailure(own) || lastFailure(spans.filter((s) => s.task === ""))), span: failed };
}

function lastFailure(spans) {
  const failed = spans.findLast((s) => s.error);
  if (failed) return `. Last error: ${failed.title}: ${failed.error}`;
  const event = spans.findLast((s) => /fail|setup failure|not restarting/i.test(s.name) && s.kind === "event");
  return event ? `. ${event.name}: ${event.result}` : "";
}

// lastStart finds what took longest before the last run of a task, from the end of the run before.
function lastStart(own, spans, now) {
  const runs = own.filter((s) => s.kind === "run"), run = runs.at(-1);
  if (!run) return {};
  const from = runs.at(-2)?.end ?? spans[0].start;
  const before = spans.filter((s) => (s.task === run.task || s.task === "" && runs.length === 1) && s.start >= from && s.start <= run.start && !["alloc", "run", "event", "gap"].includes(s.kind));
  const slowest = before.reduce((a, b) => (a && lengthOf(a, now) >= lengthOf(b, now) ? a : b), undefined);
  return slowest && { slowest, text: `start took ${duration(run.start - from)}, of which ${duration(lengthOf(slowest, now))}` };
}
