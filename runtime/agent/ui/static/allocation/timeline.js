// @ts-check
// The time line of an allocation.

import { get, pause, send, visible, watch } from "../api.js";
import { badge, facts, h, hideUntilComplete, link, replace, update } from "../dom.js";
import { clock } from "../format.js";
import { liveTable } from "../livetable.js";
import { showError } from "../page.js";
import { hasEnded, tasksOf } from "../status.js";
import { TaskLog } from "../tasklog.js";
import { allocationPath } from "../paths.js";
import { lineElement, save } from "./loglines.js";
import { exitOf, fromAPI, isFolded, lengthOf, nextStart, sentenceText, textOf } from "./spans.js";
import { timeChart } from "./timechart.js";

const redrawInterval = 500; // milliseconds, while a span lasts
const outputInterval = 2000; // milliseconds
const logLines = 40;
const outputTimeout = 1000; // milliseconds that the page waits for the output of its first span
const linesAfterExit = 10;
const lastOutput = 1000; // milliseconds after an exit in which output of the process arrives

const singular = { alloc: "period", hook: "hook", driver: "driver call", wait: "wait", run: "run", event: "event", gap: "dropped spans" };

export async function show(main, { alloc }, signal) {
  let all = [], spans = [], summary = {}, now = Date.now(), mode = "", current = alloc, log = new AbortController(), lastError = -1, isOpened = false, showsInternals = false;
  const problem = h("p", { class: "problem" });
  const situation = h("ul", { class: "situation" });
  const details = h("div", { role: "status", class: "span-details" }, h("p", { class: "dim" }, "Select a span for its details, and for the output of the task at that time."));
  const output = h("div", { class: "span-output" });
  const chart = timeChart({ select: (s) => open(s), changed: (m) => { mode = m; if (m !== "custom") fit(); } }, signal);
  const button = (label, text, onclick) => h("button", { "aria-label": label, title: label, onclick }, text);
  const errors = h("button", { class: "danger", hidden: true, onclick: nextError });
  const columns = [
    { title: "Start", cell: (s) => clock(s.start * 1e6, true), sort: (s) => s.start },
    { title: "Of", cell: (s) => h("bdi", null, s.task || "allocation"), sort: (s) => s.task },
    { title: "Kind", cell: (s) => singular[s.kind] ?? s.kind, sort: (s) => s.kind },
    { title: "What", class: "clip", cell: (s) => spanLink(s.id, s.title), sort: (s) => s.title },
    { title: "Duration", class: "number", cell: (s) => textOf(s, now), sort: (s) => (s.kind === "event" ? -1 : lengthOf(s, now)), descendingFirst: true },
    { title: "Result", class: "clip", cell: (s) => (s.error ? h("span", { class: "error" }, "✕ " + s.error) : s.result) },
  ];
  const table = liveTable("Spans", columns, (s) => s.id, signal);
  const internals = h("button", { "aria-pressed": "false", onclick: toggleInternals }, "Internals");
  const exported = h("span", { role: "status", class: "dim" });
  const content = h("div", null,
    problem, situation,
    h("div", { class: "toolbar", role: "toolbar", "aria-label": "View of the time line" },
      h("button", { onclick: () => { mode = "start"; fit(); } }, "Start"), h("button", { onclick: () => { mode = "all"; fit(); } }, "All"),
      button("Zoom in", "+", () => chart.zoom(1 / 1.5)), button("Zoom out", "−", () => chart.zoom(1.5)),
      button("Earlier", "←", () => chart.move(-0.3)), button("Later", "→", () => chart.move(0.3)), errors, internals,
      h("button", { onclick: saveImage }, "Save image"), h("button", { onclick: saveTrace }, "Save trace"), exported,
      h("span", { class: "dim" }, "Drag to move. Click the chart and use the wheel, or + and −, to zoom.")),
    chart.element, h("div", { class: "columns" }, details, output),
    h("h2", null, "All spans"), h("p", { class: "dim" }, "Sort by duration to find the slow hook."), table.element);
  const arrived = hideUntilComplete(content, ["spans", "output"], () => showTable());
  main.append(content);

  function showSpans(value) {
    const ended = hasEnded(current) && current.DesiredStatus !== "run" || tasksDead(current);
    all = fromAPI(value.Spans, ended && current.ClientStatus !== "running");
    summary = value.Summary;
    now = Math.max(Date.now(), ...all.map((s) => s.end ?? s.start));
    showUnfolded();
    arrived("spans");
    if (isOpened || all.length === 0) return arrived("output");
    isOpened = true;
    openFirst();
  }

  // showUnfolded shows the spans, without those that are folded.
  function showUnfolded() {
    const shownIDs = new Set([wanted().get("span"), summary.Problem.SpanID, ...(summary.Tasks ?? []).flatMap((t) => t.Sentences.map((o) => o.SpanID))]);
    spans = showsInternals ? all : all.filter((s) => !isFolded(s, shownIDs));
    const count = failures().length;
    errors.hidden = count === 0;
    errors.textContent = count === 1 ? "Show the error" : `Show the ${count} errors`;
    draw();
    showTable();
  }

  // showTable shows the spans in the table, the newest first.
  function showTable() {
    table.show([...spans].reverse());
  }

  function toggleInternals() {
    showsInternals = !showsInternals;
    internals.setAttribute("aria-pressed", showsInternals);
    showUnfolded();
  }

  // openFirst opens the span of the address, or else the problem.
  async function openFirst() {
    const span = wantedSpan();
    await Promise.race([open(span ?? problemSpan(), false), pause(outputTimeout, signal)]);
    arrived("output");
    if (span && !signal.aborted) (output.querySelector("pre") ? output : details).scrollIntoView({ block: "nearest" });
  }

  // wanted has the fragment of the address: span is the id of a span, and exit the name of a task whose exit is wanted.
  const wanted = () => new URLSearchParams(location.hash.slice(1));
  const wantedSpan = () => all.find((s) => s.id === wanted().get("span")) ?? exitOf(all, wanted().get("exit"));
  const problemSpan = () => all.find((s) => s.id === summary.Problem.SpanID);
  const failures = () => spans.filter((s) => s.error || s.failed);

  // open selects a span, and shows its details and the output. The address of the page becomes that of the span, unless isByUser
  // is false. The result is a promise for the first output.
  function open(span, isByUser = true) {
    if (!span) return Promise.resolve();
    if (isByUser) history.replaceState(null, "", spanPath(span.id));
    chart.selectSpan(span);
    return showSpan(span);
  }

  const spanPath = (id) => `${allocationPath(alloc.ID, "timeline")}#span=${id}`;

  // spanLink creates a link to a span, which is opened without a new page.
  function spanLink(id, ...children) {
    const onclick = (event) => {
      const span = all.find((s) => s.id === id);
      if (!span || event.metaKey || event.ctrlKey || event.shiftKey) return;
      event.preventDefault();
      open(span);
    };
    return h("a", { href: spanPath(id), class: "span-link", onclick }, children);
  }

  function draw() {
    chart.update(spans, now);
    mode ||= allRun(spans, tasksOf(current)) && isInStart(wantedSpan() ?? problemSpan()) ? "start" : "all";
    if (mode === "custom") chart.view(...chart.range);
    else fit();
    drawSituation();
  }

  function fit() {
    if (spans.length === 0) return;
    const begin = spans[0].start, runs = firstRuns();
    const lasts = spans.some((s) => s.end === undefined);
    const last = Math.max(...spans.map((s) => s.end ?? s.start), lasts ? now : 0);
    const end = mode === "start" && runs.length ? Math.min(last, Math.max(...runs.map((s) => s.start)) + 20) : last;
    const border = Math.max(1, (end - begin) * 0.03);
    chart.view(begin - border, end + border * 2);
  }

  const firstRuns = () => tasksOf(current).map((t) => spans.find((s) => s.kind === "run" && s.task === t.Name)).filter(Boolean);
  const isInStart = (span) => !span || firstRuns().some((run) => span.start <= run.start);

  function drawSituation() {
    const sentence = (o) => (o.SpanID ? spanLink(o.SpanID, sentenceText(o, now)) : sentenceText(o, now));
    update(problem, summary.Problem.Text && sentence(summary.Problem));
    problem.hidden = !summary.Problem.Text;
    update(situation, (summary.Tasks ?? []).map((t) => h("li", { "data-key": t.Task },
      link(allocationPath(alloc.ID, t.Task), h("bdi", null, t.Task)), " ", badge(t.State), ": ", t.Sentences.map((o, i) => [i > 0 && "; ", sentence(o)]), ".")));
  }

  function nextError() {
    const failed = failures();
    lastError = (lastError + 1) % failed.length;
    open(failed[lastError]);
  }

  function saveImage() {
    const lines = [`Time line of allocation ${alloc.ID.slice(0, 8)} ${alloc.Name}`, sentenceText(summary.Problem, now),
      ...(summary.Tasks ?? []).map((t) => `${t.Task} ${t.State}: ${t.Sentences.map((o) => sentenceText(o, now)).join("; ")}`)];
    save(new Blob([chart.image(lines.filter(Boolean))], { type: "image/svg+xml" }), `timeline-${alloc.ID.slice(0, 8)}.svg`);
  }

  async function saveTrace() {
    try {
      const response = await send(`/v1/allocation/${alloc.ID}/timeline?format=trace-event`, { signal });
      save(await response.blob(), `timeline-${alloc.ID.slice(0, 8)}.trace.json`);
      exported.textContent = "Perfetto (ui.perfetto.dev) and chrome://tracing open the file.";
    } catch (err) {
      if (!signal.aborted) exported.textContent = "There is no trace: " + err.message;
    }
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
      ["Address", spanLink(s.id, "link to this span")],
    ]));
    log.abort();
    log = new AbortController();
    replace(output);
    return s.task ? new Promise((resolve) => showOutput(s, AbortSignal.any([signal, log.signal]), resolve)) : Promise.resolve();
  }

  // showOutput shows what the task has printed up to the end of a span, and continues while the span lasts. After the end of a run
  // it also shows the first lines of the next one. It calls onShown after the first output.
  async function showOutput(s, until, onShown) {
    let drawn = "";
    for (let first = true; !until.aborted && (first || s.end === undefined); first = false) {
      await visible(until);
      const isExit = s.kind === "run" && s.end !== undefined;
      // The last output of a process can arrive after its exit, but not after the next start.
      const end = isExit ? Math.min(nextStart(all, s) ?? Infinity, s.end + lastOutput) : s.end ?? Date.now() + 1000;
      try {
        const reader = new TaskLog(alloc.ID, s.task, ["stdout", "stderr"]);
        await reader.openAt(end, until);
        const lines = await reader.earlier(logLines, until);
        const later = isExit ? await linesAfter(end, until) : [];
        if (!until.aborted && JSON.stringify([lines, later]) !== drawn) {
          drawn = JSON.stringify([lines, later]);
          drawOutput(s, lines, later);
        }
      } catch (err) {
        if (!until.aborted) replace(output, h("p", { class: "dim" }, err.status === 404 ? "The task has printed nothing." : "No output: " + err.message));
      }
      if (first) onShown();
      if (s.end === undefined) await pause(outputInterval, until);
    }
    onShown();

    async function linesAfter(time, until) {
      const reader = new TaskLog(alloc.ID, s.task, ["stdout", "stderr"]);
      await reader.openAt(time + lastOutput, until);
      return (await reader.earlier(logLines, until)).filter((line) => line.time > time).slice(0, linesAfterExit);
    }
  }

  function drawOutput(s, lines, later) {
    // A process can print before the driver has answered, which is the start of the run.
    const call = s.kind === "run" ? all.findLast((o) => o.name === "StartTask" && o.task === s.task && o.start <= s.start) : undefined;
    const isDuring = (line) => line.time >= Math.floor((call ?? s).start);
    const during = lines.filter(isDuring).length;
    const isExit = s.kind === "run" && s.end !== undefined;
    const element = (line, isOfSpan) => {
      const created = lineElement(line);
      created.classList.toggle("during", isOfSpan);
      return created;
    };
    replace(output, h("h2", null, "Output of ", h("bdi", null, s.task), isExit ? " around its exit" : s.end === undefined ? " up to now" : ` up to ${clock(s.end * 1e6, true)}`),
      lines.length + later.length === 0 ? h("p", { class: "dim" }, "The task had printed nothing until then.") : [
        h("p", { class: "dim" }, s.kind !== "event" && `${during === logLines ? "At least " : ""}${during} of these lines arrived during the span; they have a bar. `,
          link(allocationPath(alloc.ID, s.task, "logs"), "All output")),
        h("pre", { class: "log", tabindex: "0" }, lines.map((line) => element(line, isDuring(line))),
          isExit && h("div", { class: "line exit" }, `${clock(s.end * 1e6, true)} ${s.title}`), later.map((line) => element(line, false)))]);
    const pre = output.querySelector("pre");
    if (pre) pre.scrollTop = later.length ? pre.querySelector(".exit").offsetTop - pre.offsetTop - pre.clientHeight + 80 : pre.scrollHeight;
  }

  const timer = setInterval(() => {
    if (document.hidden || !spans.some((s) => s.end === undefined)) return;
    now = Math.max(Date.now(), now);
    draw();
  }, redrawInterval);
  signal.addEventListener("abort", () => clearInterval(timer));

  // The time line changes with the allocation.
  await watch(`/v1/allocation/${alloc.ID}/timeline`, signal, async (value) => {
    current = await get(`/v1/allocation/${alloc.ID}`, signal).catch(() => current); // the watch reports errors of the agent
    if (!signal.aborted) showSpans(value);
  }, showError);
}

function tasksDead(alloc) {
  const states = Object.values(alloc.TaskStates ?? {});
  return states.length > 0 && states.every((s) => s.State === "dead");
}

function allRun(spans, tasks) {
  return tasks.every((t) => spans.some((s) => s.kind === "run" && s.task === t.Name));
}
