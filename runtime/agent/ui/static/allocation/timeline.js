// @ts-check
// The time line of an allocation.

import { get, pause, visible, watch } from "../api.js";
import { badge, facts, h, hideUntilComplete, link, replace, update } from "../dom.js";
import { clock } from "../format.js";
import { liveTable } from "../livetable.js";
import { showError } from "../page.js";
import { hasEnded, tasksOf } from "../status.js";
import { TaskLog } from "../tasklog.js";
import { allocationPath } from "../paths.js";
import { lineElement } from "./loglines.js";
import { fromAPI, lengthOf, summary, textOf } from "./spans.js";
import { timeChart } from "./timechart.js";

const redrawInterval = 500; // milliseconds, while a span lasts
const outputInterval = 2000; // milliseconds
const logLines = 40;

const singular = { alloc: "period", hook: "hook", driver: "driver call", wait: "wait", run: "run", event: "event", gap: "dropped spans" };

export async function show(main, { alloc }, signal) {
  let spans = [], now = Date.now(), mode = "", current = alloc, log = new AbortController(), lastError = -1;
  const situation = h("ul", { class: "situation" });
  const details = h("div", { role: "status", class: "span-details" }, h("p", { class: "dim" }, "Select a span for its details, and for the output of the task at that time."));
  const output = h("div", { class: "span-output" });
  const chart = timeChart({ select: showSpan, changed: (m) => { mode = m; if (m !== "custom") fit(); } }, signal);
  const button = (label, text, onclick) => h("button", { "aria-label": label, title: label, onclick }, text);
  const errors = h("button", { class: "danger", hidden: true, onclick: nextError });
  const columns = [
    { title: "Start", cell: (s) => clock(s.start * 1e6, true), sort: (s) => s.start },
    { title: "Of", cell: (s) => h("bdi", null, s.task || "allocation"), sort: (s) => s.task },
    { title: "Kind", cell: (s) => singular[s.kind] ?? s.kind, sort: (s) => s.kind },
    { title: "What", class: "clip", cell: (s) => h("button", { class: "plain", onclick: () => { chart.selectSpan(s); showSpan(s); } }, s.title), sort: (s) => s.title },
    { title: "Duration", class: "number", cell: (s) => textOf(s, now), sort: (s) => (s.kind === "event" ? -1 : lengthOf(s, now)), descendingFirst: true },
    { title: "Result", class: "clip", cell: (s) => (s.error ? h("span", { class: "error" }, "✕ " + s.error) : s.result) },
  ];
  const table = liveTable("Spans", columns, (s) => s.id, signal);
  const content = h("div", null,
    situation,
    h("div", { class: "toolbar", role: "toolbar", "aria-label": "View of the time line" },
      h("button", { onclick: () => { mode = "start"; fit(); } }, "Start"), h("button", { onclick: () => { mode = "all"; fit(); } }, "All"),
      button("Zoom in", "+", () => chart.zoom(1 / 1.5)), button("Zoom out", "−", () => chart.zoom(1.5)),
      button("Earlier", "←", () => chart.move(-0.3)), button("Later", "→", () => chart.move(0.3)), errors,
      h("span", { class: "dim" }, "Drag to move. Click the chart and use the wheel, or + and −, to zoom.")),
    chart.element, h("div", { class: "columns" }, details, output),
    h("h2", null, "All spans"), h("p", { class: "dim" }, "Sort by duration to find the slow hook."), table.element);
  const arrived = hideUntilComplete(content, ["spans"], () => table.show(spans));
  main.append(content);

  function showSpans(value) {
    const ended = hasEnded(current) && current.DesiredStatus !== "run" || tasksDead(current);
    spans = fromAPI(value.Spans, ended && current.ClientStatus !== "running");
    now = Math.max(Date.now(), ...spans.map((s) => s.end ?? s.start));
    const count = spans.filter((s) => s.error).length;
    errors.hidden = count === 0;
    errors.textContent = count === 1 ? "Show the error" : `Show the ${count} errors`;
    draw();
    table.show(spans);
    arrived("spans");
  }

  function draw() {
    chart.update(spans, now);
    mode ||= allRun(spans, tasksOf(current)) ? "start" : "all";
    if (mode === "custom") chart.view(...chart.range);
    else fit();
    drawSituation();
  }

  function fit() {
    if (spans.length === 0) return;
    const begin = spans[0].start;
    const runs = tasksOf(current).map((t) => spans.find((s) => s.kind === "run" && s.task === t.Name)).filter(Boolean);
    const lasts = spans.some((s) => s.end === undefined);
    const last = Math.max(...spans.map((s) => s.end ?? s.start), lasts ? now : 0);
    const end = mode === "start" && runs.length ? Math.min(last, Math.max(...runs.map((s) => s.start)) + 20) : last;
    const border = Math.max(1, (end - begin) * 0.03);
    chart.view(begin - border, end + border * 2);
  }

  function drawSituation() {
    update(situation, summary(spans, tasksOf(current), current.TaskStates, now).map((t) => h("li", { "data-key": t.task },
      link(allocationPath(alloc.ID, t.task), h("bdi", null, t.task)), " ", badge(t.state), t.state === "running" ? " " : ": ", t.text,
      t.span && [". ", spanButton(t.span, "Show")],
      t.slowest && h("span", { class: "dim" }, ` Its ${t.startText} for `, spanButton(t.slowest, t.slowest.title), "."))));
  }

  const spanButton = (span, text) => h("button", { class: "plain", onclick: () => { chart.selectSpan(span); showSpan(span); } }, text);

  function nextError() {
    const failed = spans.filter((s) => s.error);
    lastError = (lastError + 1) % failed.length;
    chart.selectSpan(failed[lastError]);
    showSpan(failed[lastError]);
  }

  function showSpan(s) {
    replace(details, h("h2", null, s.title), facts([
      ["Kind", singular[s.kind] ?? s.kind],
      ["Of", s.task ? ["task ", link(allocationPath(alloc.ID, s.task), h("bdi", null, s.task))] : "allocation"],
      s.plugin && [s.kind === "hook" ? "Hook" : "Driver", s.plugin],
      s.kind === "hook" && ["Hook point", s.name],
      s.kind === "run" && ["Id", h("code", null, s.name)],
      ["Start", clock(s.start * 1e6, true)],
      s.kind !== "event" && ["Duration", textOf(s, now)],
      s.result && [s.kind === "event" ? "Message" : "Result", s.result],
      s.error && ["Error", h("span", { class: "error" }, s.error)],
    ]));
    log.abort();
    log = new AbortController();
    replace(output);
    if (s.task) showOutput(s, AbortSignal.any([signal, log.signal]));
  }

  // showOutput shows what the task has printed up to the end of a span, and continues while the span lasts.
  async function showOutput(s, until) {
    let drawn = "";
    for (let first = true; !until.aborted && (first || s.end === undefined); first = false) {
      await visible(until);
      const end = s.end ?? Date.now() + 1000;
      try {
        const reader = new TaskLog(alloc.ID, s.task, ["stdout", "stderr"]);
        await reader.openAt(end, until);
        const lines = await reader.earlier(logLines, until);
        if (!until.aborted && JSON.stringify(lines) !== drawn) {
          drawn = JSON.stringify(lines);
          drawOutput(s, end, lines);
        }
      } catch (err) {
        if (!until.aborted) replace(output, h("p", { class: "dim" }, err.status === 404 ? "The task has printed nothing." : "No output: " + err.message));
      }
      if (s.end === undefined) await pause(outputInterval, until);
    }
  }

  function drawOutput(s, end, lines) {
    // A process can print before the driver has answered, which is the start of the run.
    const call = s.kind === "run" ? spans.findLast((o) => o.name === "StartTask" && o.task === s.task && o.start <= s.start) : undefined;
    const isDuring = (line) => line.time >= Math.floor((call ?? s).start);
    const during = lines.filter(isDuring).length;
    replace(output, h("h2", null, "Output of ", h("bdi", null, s.task), s.end === undefined ? " up to now" : ` up to ${clock(end * 1e6, true)}`),
      lines.length === 0 ? h("p", { class: "dim" }, "The task had printed nothing until then.") : [
        h("p", { class: "dim" }, s.kind !== "event" && `${during === logLines ? "At least " : ""}${during} of these lines arrived during the span; they have a bar. `,
          link(allocationPath(alloc.ID, s.task, "logs"), "All output")),
        h("pre", { class: "log", tabindex: "0" }, lines.map((line) => {
          const element = lineElement(line);
          element.classList.toggle("during", isDuring(line));
          return element;
        }))]);
    const pre = output.querySelector("pre");
    if (pre) pre.scrollTop = pre.scrollHeight;
  }

  const timer = setInterval(() => {
    if (document.hidden || !spans.some((s) => s.end === undefined)) return;
    now = Math.max(Date.now(), now);
    draw();
  }, redrawInterval);
  signal.addEventListener("abort", () => clearInterval(timer));

  await Promise.all([
    watch(`/v1/allocation/${alloc.ID}`, signal, (value) => { current = value; if (spans.length) drawSituation(); }, showError),
    watch(`/v1/allocation/${alloc.ID}/timeline`, signal, async (value) => {
      current = await get(`/v1/allocation/${alloc.ID}`, signal).catch(() => current); // the other watch reports errors
      if (!signal.aborted) showSpans(value);
    }, showError),
  ]);
}

function tasksDead(alloc) {
  const states = Object.values(alloc.TaskStates ?? {});
  return states.length > 0 && states.every((s) => s.State === "dead");
}

function allRun(spans, tasks) {
  return tasks.every((t) => spans.some((s) => s.kind === "run" && s.task === t.Name));
}
