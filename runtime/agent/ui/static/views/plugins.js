// @ts-check
// The plugins of the agent: their processes, calls and hooks.

import { get, watch } from "../api.js";
import { badge, clockAndAge, valueList, h, link, table, update } from "../dom.js";
import { age, clock, duration, shortID } from "../format.js";
import { showError } from "../page.js";
import { allocationPath, jobPath } from "../paths.js";

export function show(main, parameters, signal) {
  document.title = "Plugins – nomad-lite";
  const page = h("div");
  main.append(h("h1", null, "Plugins"), page);
  let jobs = new Map(); // allocations by id; the page shows their jobs
  // The index of the plugins does not change with their calls: a wait of five seconds keeps the numbers of calls recent.
  return watch("/v1/agent/plugins", signal, async (report) => {
    if (report.Hooks?.some((hook) => hook.Allocs?.some((id) => !jobs.has(id)))) {
      jobs = new Map((await get("/v1/allocations?namespace=*&task_states=false", signal)).map((a) => [a.ID, a]));
    }
    update(page, drawReport(report, jobs));
  }, showError, { wait: "5s", always: true });
}

function drawReport(report, allocs) {
  const all = report.Plugins ?? [], hooks = report.Hooks ?? [];
  const running = all.filter((p) => p.PID), others = all.filter((p) => !p.PID);
  return [
    h("p", null, `${running.length} of ${all.length} plugins have a process. Builtin plugins start when a task needs them.`),
    running.map((p) => section(p, hooks, allocs)),
    others.length > 0 && h("h2", null, "Without a process"),
    others.map((p) => section(p, hooks, allocs)),
    missing(hooks, all),
  ];
}

// section describes one plugin. Its key includes the name of the file, because several plugins can serve one driver.
function section(p, hooks, allocs) {
  const hook = p.Type === "hook" || !p.Type ? hooks.find((other) => other.Name === (p.Serves || p.Name)) : null;
  return h("details", { "data-key": "plugin " + p.Name, class: "plugin", open: p.State === "failed" || p.State === "unhealthy" },
    h("summary", null, h("strong", null, p.Serves || p.Name), " ", h("span", { class: "kind" }, p.Type || "plugin"), badge(p.State),
      p.PID ? h("span", { class: "dim" }, ` pid ${p.PID}, ${age(p.StartedAt)}, ${restarts(p)}`) : null),
    valueList([
      ["Kind", [p.Type || "unknown", p.Path ? "" : ", builtin"]], p.Version && ["Version", p.Version],
      p.Path && ["File", h("code", null, p.Path)],
      ["Process", p.PID ? [`pid ${p.PID}, started `, clockAndAge(p.StartedAt)] : "none"],
      ["Restarts", restarts(p)],
      p.Devices && ["Devices", p.Devices],
      p.Error && ["Error", h("pre", { class: "error" }, p.Error)],
      p.LastExit && ["Last exit", [clock(p.LastExit.Time), h("pre", null, p.LastExit.Error)]],
    ]),
    hook && attachment(hook, allocs),
    p.Calls?.length > 0 && [h("h3", null, "Calls to this process"), calls(p)],
    p.Capabilities?.length > 0 && [h("h3", null, "Capabilities"), table("Capabilities of " + p.Name, [
      { title: "Capability", cell: (c) => c.Name }, { title: "Reported", cell: (c) => c.Reported }, { title: "Effect on this machine", cell: (c) => c.Effect },
    ], p.Capabilities, (c) => c.Name)],
    schema("Configuration of the plugin block", p.ConfigSchema), schema("Configuration of a task", p.TaskSchema));
}

const restarts = (p) => (p.Restarts === 1 ? "1 restart" : `${p.Restarts} restarts`);

function calls(p) {
  const milliseconds = (nanoseconds) => duration(nanoseconds / 1e6);
  return table("Calls to " + p.Name, [
    { title: "Method", cell: (c) => c.Method },
    { title: "Calls", class: "number", cell: (c) => c.Calls },
    { title: "Errors", class: "number", cell: (c) => c.Errors },
    { title: "In progress", class: "number", cell: (c) => c.InProgress },
    { title: "Mean", class: "number", cell: (c) => (c.Calls ? milliseconds(c.Total / c.Calls) : "") },
    { title: "Longest", class: "number", cell: (c) => (c.Calls ? milliseconds(c.Max) : "") },
  ], p.Calls, (c) => c.Method);
}

function attachment(hook, allocs) {
  return [h("h3", null, "Hook"), valueList([
    ["Hook points", (hook.HookPoints ?? []).join(", ") || "unknown until the hook starts"],
    ["Called", called(hook)],
    hook.Rule && ["Hook block", [h("code", null, hook.Rule.Place), `, order ${hook.Rule.Order}, on error ${hook.Rule.OnError}`, hook.Rule.Timeout && `, timeout ${hook.Rule.Timeout}`]],
    hook.Description && ["Message", hook.Description],
    ["Allocations", (hook.Allocs ?? []).length === 0 ? "none" : h("ul", { class: "plain" }, hook.Allocs.map((id) => h("li", { "data-key": id },
      link(allocationPath(id), shortID(id)), " ", allocs.has(id) && link(jobPath(allocs.get(id).JobID, allocs.get(id).Namespace), allocs.get(id).JobID))))],
  ])];
}

function called(hook) {
  if (hook.Rule?.Matches) return "where the hook block matches, or a job attaches it";
  return hook.AllAllocs ? "for each allocation" : "where a job attaches it";
}

function schema(title, text) {
  return text && h("details", { "data-key": title }, h("summary", null, title), h("pre", null, text));
}

// missing lists the hooks of hook blocks that have no plugin.
function missing(hooks, plugins) {
  const rows = hooks.filter((hook) => hook.Health === "missing" && !plugins.some((p) => p.Serves === hook.Name));
  return rows.map((hook) => h("p", { class: "error", "data-key": "missing " + hook.Name }, `The hook ${hook.Name} has a hook block (${hook.Rule?.Place}), and no plugin.`));
}
