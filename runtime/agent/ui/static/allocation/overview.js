// @ts-check
// The overview of an allocation, or of one of its tasks.

import { can, get, poll, put, watch } from "../api.js";
import { ago, badge, clockAndAge, facts, h, hideUntilComplete, link, linkIf, replace, table, update, valueList } from "../dom.js";
import { address, bytes, clock, isSet, shortID } from "../format.js";
import { ask } from "../dialog.js";
import { showError } from "../page.js";
import { checkStatus, hasEnded, tasksOf } from "../status.js";
import { TaskLog } from "../tasklog.js";
import { followHistory, usageCharts } from "../usage.js";
import { maskedValue } from "../maskedvalue.js";
import { allocationPath, execPath, jobPath, servicePath } from "../paths.js";
import { lineElement } from "./loglines.js";

const statsInterval = 2000; // milliseconds

export async function show(main, { alloc, task }, signal) {
  const live = h("div"), output = h("div"), events = h("div"), checks = h("div");
  const usage = h("section", null, h("h2", null, "Resources")), more = h("div");
  const content = h("div", null, live, output, events, checks, usage, more);
  const arrived = hideUntilComplete(content, ["state", "statistics", ...(task ? [] : ["checks"])]);
  main.append(content);
  let current = alloc;
  // pollUntilEnded reads values that change without an index, for the last time when the allocation has ended.
  const pollUntilEnded = (read) => {
    const ended = new AbortController();
    return poll(statsInterval, AbortSignal.any([signal, ended.signal]), async () => {
      const isLast = hasEnded(current);
      await read();
      if (isLast) ended.abort();
    });
  };
  if (!task) showChecks(checks, alloc, signal, pollUntilEnded, () => arrived("checks"));
  showUsage(usage, alloc, task, signal, pollUntilEnded, () => arrived("statistics"));
  showStatic(more, alloc, task);
  let shownEnd = ""; // the end of the task whose last lines are shown
  await watch(`/v1/allocation/${alloc.ID}`, signal, async (value) => {
    current = value;
    if (task) await showTask(value);
    else update(live, allocationState(value));
    arrived("state");
  }, showError);

  async function showTask(value) {
    const state = value.TaskStates?.[task];
    update(live, taskState(value, task));
    update(events, taskEvents(state));
    const end = state?.Failed || state?.State === "dead" ? String(state.FinishedAt) : "";
    if (end === shownEnd) return;
    shownEnd = end;
    const lines = h("div");
    replace(output, lines);
    if (end) await showLastLines(lines, value, task, signal);
  }
}

/** @param {API.Allocation} alloc */
function allocationState(alloc) {
  return [
    h("div", { class: "title" }, badge(alloc.ClientStatus), alloc.ClientDescription, h("div", { class: "toolbar" }, restartButton(alloc), stopButton(alloc))),
    facts([
      ["Job", link(jobPath(alloc.JobID, alloc.Namespace), alloc.JobID)],
      ["Group", alloc.TaskGroup],
      ["Namespace", alloc.Namespace],
      alloc.DesiredStatus !== "run" && ["Stopped by the scheduler", alloc.DesiredDescription || "yes"],
      ["Job version", String(alloc.Job?.Version ?? "")],
      alloc.DeploymentStatus?.Healthy != null && ["Deployment", badge(alloc.DeploymentStatus.Healthy ? "healthy" : "unhealthy")],
      ["Created", clockAndAge(alloc.CreateTime)],
      alloc.PreviousAllocation && ["Replaces", link(allocationPath(alloc.PreviousAllocation), shortID(alloc.PreviousAllocation))],
      alloc.NextAllocation && ["Replaced by", link(allocationPath(alloc.NextAllocation), shortID(alloc.NextAllocation))],
    ]),
    h("h2", null, "Tasks"),
    table("Tasks", [
      { title: "Task", cell: (t) => link(allocationPath(alloc.ID, t.Name), h("bdi", null, t.Name)) },
      { title: "State", cell: (t) => taskBadge(alloc.TaskStates?.[t.Name]) },
      { title: "Restarts", class: "number", cell: (t) => alloc.TaskStates?.[t.Name]?.Restarts ?? 0 },
      { title: "Last event", class: "event", cell: (t) => lastEvent(alloc.TaskStates?.[t.Name]) },
      { title: "", class: "actions", cell: (t) => taskActions(alloc, t.Name) },
    ], tasksOf(alloc), (t) => t.Name),
  ];
}

/** @param {API.Allocation} alloc */
function taskState(alloc, name) {
  const state = alloc.TaskStates?.[name];
  return [
    h("div", { class: "title" }, h("span", null, taskBadge(state)), h("div", { class: "toolbar" }, taskButtons(alloc, name))),
    facts([
      ["Restarts", String(state?.Restarts ?? 0)],
      isSet(state?.StartedAt) && ["Started", clockAndAge(state.StartedAt)],
      isSet(state?.FinishedAt) && ["Ended", clockAndAge(state.FinishedAt)],
      ["Driver", tasksOf(alloc).find((t) => t.Name === name)?.Driver],
    ]),
  ];
}

/** @param {API.TaskState} state */
function taskEvents(state) {
  return [h("h2", null, "Last events"), table("Events", [
    { title: "Time", cell: (e) => clock(e.Time, true) },
    { title: "Event", cell: (e) => e.Type },
    { title: "Message", cell: (e) => e.DisplayMessage || e.Message },
  ], [...(state?.Events ?? [])].reverse())];
}

/** @param {API.TaskState} state */
function taskBadge(state) {
  if (!state) return badge("pending");
  if (state.State !== "dead") return badge(state.State);
  const exit = state.Events?.findLast((e) => e.Type === "Terminated");
  return [badge(state.Failed ? "failed" : "complete"), exit && ` (${exit.Signal ? "signal " + exit.Signal : "exit status " + exit.ExitCode})`];
}

/** @param {API.TaskState} state */
function lastEvent(state) {
  const event = state?.Events?.at(-1);
  return event && [h("strong", null, event.Type), " ", event.DisplayMessage || event.Message, h("span", { class: "dim" }, " ", ago(event.Time))];
}

const mayReadLogs = (alloc) => can(alloc.Namespace, "read-logs", "read-fs");

/** @param {API.Allocation} alloc */
function taskActions(alloc, name) {
  return [
    linkIf(mayReadLogs(alloc), allocationPath(alloc.ID, name, "logs"), "Logs"), " ",
    linkIf(can(alloc.Namespace, "read-fs"), allocationPath(alloc.ID, name, "fs"), "Files"), " ",
    isRunning(alloc, name) && [linkIf(can(alloc.Namespace, "alloc-exec"), execPath(alloc, name), "Terminal"), " "], taskButtons(alloc, name),
  ];
}

/** @param {API.Allocation} alloc */
function taskButtons(alloc, name) {
  return isRunning(alloc, name) && [
    h("button", { permitted: can(alloc.Namespace, "alloc-lifecycle"), "aria-label": "Restart the task " + name, onclick: () => restart(alloc, name) }, "Restart"), " ",
    h("button", { permitted: can(alloc.Namespace, "alloc-lifecycle"), "aria-label": "Send a signal to the task " + name, onclick: () => sendSignal(alloc, name) }, "Signal"),
  ];
}

/** @param {API.Allocation} alloc */
function isRunning(alloc, name) {
  return alloc.TaskStates?.[name]?.State === "running";
}

/** @param {API.Allocation} alloc */
function restartButton(alloc) {
  return h("button", { permitted: can(alloc.Namespace, "alloc-lifecycle"), disabled: hasEnded(alloc), onclick: () => restart(alloc, "") }, "Restart all tasks");
}

/** @param {API.Allocation} alloc */
function restart(alloc, task) {
  return ask({
    title: task ? `Restart the task ${task}` : "Restart all tasks", action: "Restart",
    text: task ? "The process of the task is stopped and started again." : "All running tasks of the allocation are stopped and started again.",
    run: () => put(`/v1/client/allocation/${alloc.ID}/restart`, { TaskName: task }),
  });
}

/** @param {API.Allocation} alloc */
function stopButton(alloc) {
  return h("button", {
    class: "danger", permitted: can(alloc.Namespace, "alloc-lifecycle"), disabled: hasEnded(alloc) || alloc.DesiredStatus !== "run",
    onclick: () => ask({
      title: "Stop the allocation", action: "Stop", danger: true,
      text: `All tasks of ${alloc.Name} are stopped. The agent starts a new allocation in its place; to end the job, stop the job.`,
      run: () => put(`/v1/allocation/${alloc.ID}/stop`, {}),
    }),
  }, "Stop");
}

const signals = ["SIGHUP", "SIGINT", "SIGQUIT", "SIGABRT", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGTERM", "SIGCONT", "SIGSTOP", "SIGWINCH"];

/** @param {API.Allocation} alloc */
function sendSignal(alloc, task) {
  const choice = h("select", { id: "signal" }, signals.map((name) => h("option", null, name)));
  return ask({
    title: `Send a signal to the task ${task}`, action: "Send", text: "The processes of the task receive the signal.",
    fields: [h("label", { for: "signal" }, "Signal "), choice],
    run: () => put(`/v1/client/allocation/${alloc.ID}/signal`, { Task: task, Signal: choice.value }),
  });
}

// hasServices reports whether the group of an allocation or one of its tasks has a service.
/** @param {API.Allocation} alloc */
function hasServices(alloc) {
  const group = alloc.Job?.TaskGroups?.find((g) => g.Name === alloc.TaskGroup);
  return [group, ...tasksOf(alloc)].some((owner) => owner?.Services?.length > 0);
}

// showChecks shows the services and their checks. It calls onRead after each attempt to read them.
/** @param {API.Allocation} alloc */
function showChecks(element, alloc, signal, pollUntilEnded, onRead) {
  if (!hasServices(alloc)) return onRead();
  return pollUntilEnded(async () => {
    try {
      const [services, checks] = await Promise.all([
        get(`/v1/allocation/${alloc.ID}/services`, signal), get(`/v1/client/allocation/${alloc.ID}/checks`, signal)]);
      drawChecks(element, services, checks);
    } finally {
      onRead();
    }
  }).catch((err) => update(element, h("p", { class: "error" }, "No services: " + err.message)));
}

function drawChecks(element, services, checks) {
  const sorted = Object.values(checks ?? {}).sort((a, b) => (a.Check < b.Check ? -1 : 1));
  update(element,
    services?.length > 0 && [h("h2", null, "Services"), table("Services", [
      { title: "Service", cell: (s) => link(servicePath(s.ServiceName, s.Namespace), s.ServiceName) },
      { title: "Address", cell: (s) => h("code", null, address(s.Address, s.Port)) },
      { title: "Tags", cell: (s) => (s.Tags ?? []).join(", ") },
    ], services)],
    sorted.length > 0 && [h("h2", null, "Checks"), table("Checks", [
      { title: "Check", cell: (c) => c.Check },
      { title: "Status", cell: (c) => badge(checkStatus(c)) },
      { title: "Service", class: "clip", cell: (c) => c.Service },
      { title: "Last result", cell: (c) => [c.Output, c.Timestamp ? h("span", { class: "dim" }, ` at ${clock(c.Timestamp * 1e9)}`) : ""] },
    ], sorted)]);
}

// showLastLines shows what a task that has ended printed at last.
/** @param {API.Allocation} alloc */
async function showLastLines(element, alloc, task, signal) {
  try {
    const log = new TaskLog(alloc.ID, task, ["stdout", "stderr"]);
    await log.openAtEnd(signal);
    const lines = await log.earlier(20, signal);
    if (lines.length === 0) return;
    element.append(h("h2", null, "Last lines of the output"), h("pre", { class: "log", tabindex: "0" }, lines.map(lineElement)),
    h("p", null, linkIf(mayReadLogs(alloc), allocationPath(alloc.ID, task, "logs"), "All output")));
  } catch (err) {
    if (!signal.aborted && err.status !== 404) element.append(h("p", { class: "error" }, err.message));
  }
}

const historyInterval = 5 * 60e3; // milliseconds: the agent measures disks as often

// showUsage shows charts of the last hours, which continue with current values. It calls onRead after the first attempt to read the
// statistics.
/** @param {API.Allocation} alloc */
async function showUsage(section, alloc, onlyTask, signal, pollUntilEnded, onRead) {
  const names = onlyTask ? [onlyTask] : tasksOf(alloc).map((t) => t.Name);
  const diskLimit = (alloc.AllocatedResources?.Shared?.DiskMB ?? 0) * 2 ** 20;
  const charts = Object.fromEntries(names.map((name) => [name, usageCharts(limitsOf(alloc, name, names.length > 1 ? 0 : diskLimit))]));
  const disk = h("p", { class: "dim" }), note = h("p", { class: "dim" });
  const history = followHistory(`/v1/client/allocation/${alloc.ID}/history`, historyInterval, signal, (value, period) => {
    for (const name of names) if (value.Tasks[name]) charts[name].setHistory(value.Tasks[name], period);
  });
  section.append(history.element, h("div", { class: "charts" }, names.map((name) => h("section", { "aria-label": "Resources of " + name },
    !onlyTask && h("h3", null, h("bdi", null, name)), charts[name].elements))), note, disk);
  await history.shown;
  return pollUntilEnded(async () => {
    const [stats, host] = await Promise.all([get(`/v1/client/allocation/${alloc.ID}/stats`, signal), get("/v1/client/stats", signal)]).finally(onRead);
    for (const name of names) {
      const used = stats.Tasks?.[name]?.ResourceUsage;
      charts[name].addLive({ cpu: used?.CpuStats?.TotalTicks, memory: used && (used.MemoryStats.Usage || used.MemoryStats.RSS) });
    }
    const dir = host.AllocDirStats;
    disk.textContent = `Disk: ${bytes(diskLimit)} reserved for the allocation` + (dir ? `; its file system has ${bytes(dir.Available)} of ${bytes(dir.Size)} free.` : ".");
  }).catch((err) => { note.textContent = "No statistics: " + err.message; });
}

// limitsOf returns the limits of a task that its charts show.
/** @param {API.Allocation} alloc */
function limitsOf(alloc, name, diskLimit) {
  const limits = alloc.AllocatedResources?.Tasks?.[name];
  const megabytes = (n) => (n ?? 0) * 2 ** 20;
  return {
    cpu: [{ name: "cpu", value: limits?.Cpu?.CpuShares ?? 0 }],
    memory: [{ name: "memory", value: megabytes(limits?.Memory?.MemoryMB) }, { name: "memory_max", value: megabytes(limits?.Memory?.MemoryMaxMB) }],
    disk: [{ name: "ephemeral_disk", value: diskLimit }],
  };
}

// showStatic shows what does not change: ports, environment and meta.
/** @param {API.Allocation} alloc */
function showStatic(element, alloc, onlyTask) {
  const ports = alloc.AllocatedResources?.Shared?.Ports ?? [];
  if (ports.length && !onlyTask) {
    element.append(h("h2", null, "Ports"), table("Ports", [
      { title: "Label", cell: (p) => p.Label },
      { title: "Address", cell: (p) => h("code", null, address(p.HostIP, p.Value)) },
      { title: "In the task", cell: (p) => (p.To > 0 ? p.To : p.Value) },
    ], ports));
  }
  const group = alloc.Job?.TaskGroups?.find((g) => g.Name === alloc.TaskGroup);
  const sections = onlyTask
    ? tasksOf(alloc).filter((t) => t.Name === onlyTask).flatMap((t) => [["Environment of the job", t.Env], ["Meta", t.Meta]])
    : [["Meta of the job", alloc.Job?.Meta], ["Meta of the group", group?.Meta]];
  for (const [title, values] of sections) {
    if (!values || Object.keys(values).length === 0) continue;
    element.append(h("h2", null, title), valueList(Object.entries(values).sort().map(([name, value]) => [name, maskedValue(name, value)])));
  }
}
