// @ts-check
// Services, their instances and checks.

import { get, ignoreForbidden, poll, watch } from "../api.js";
import { badge, h, link, table, update } from "../dom.js";
import { address, shortID } from "../format.js";
import { showError } from "../page.js";
import { allocationPath, jobPath, servicePath } from "../paths.js";
import { checkStatus } from "../status.js";

const checkInterval = 3000; // milliseconds
const maxChecked = 50; // instances whose checks are read; the API has no list of all checks

export function show(main, parameters, signal) {
  if (parameters.service) return showService(main, parameters.service, parameters.query.get("namespace") ?? "default", signal);
  document.title = "Services – nomad-lite";
  let all = [];
  const list = h("div");
  const filter = h("input", { type: "search", "aria-label": "Filter by name", placeholder: "filter", oninput: () => draw() });
  main.append(h("h1", null, "Services"), h("div", { class: "toolbar" }, filter), list);
  function draw() {
    const rows = all.filter((s) => s.name.toLowerCase().includes(filter.value.toLowerCase()));
    update(list, rows.length === 0 ? h("p", null, all.length ? "No service has this name." : "No services.") : table("Services", [
      { title: "Name", cell: (s) => link(servicePath(s.name, s.namespace), s.name) },
      { title: "Namespace", cell: (s) => s.namespace },
      { title: "Tags", cell: (s) => s.tags.join(", ") },
    ], rows, (s) => s.namespace + "/" + s.name));
  }
  return watch("/v1/services?namespace=*", signal, (namespaces) => {
    all = namespaces.flatMap((n) => n.Services.map((s) => ({ namespace: n.Namespace, name: s.ServiceName, tags: s.Tags ?? [] })));
    draw();
  }, showError);
}

function showService(main, name, namespace, signal) {
  document.title = `${name} – nomad-lite`;
  const state = { instances: null, checks: new Map() };
  const list = h("div");
  main.append(h("h1", null, name), h("p", null, "Namespace ", namespace), list);
  const draw = () => update(list, drawInstances(state));
  const followChecks = () => poll(checkInterval, signal, async () => {
    state.checks = await readChecks(state.instances, name, signal);
    draw();
  }).catch(ignoreForbidden).catch(showError);
  return watch(`/v1/service/${encodeURIComponent(name)}?namespace=${encodeURIComponent(namespace)}`, signal, (instances) => {
    const isFirst = state.instances === null;
    state.instances = instances;
    draw();
    if (isFirst) followChecks();
  }, showError);
}

// readChecks returns the checks of a service by the ids of the allocations of its first instances.
async function readChecks(instances, name, signal) {
  const checks = new Map();
  for (const id of new Set(instances.slice(0, maxChecked).map((i) => i.AllocID))) {
    try {
      checks.set(id, Object.values(await get(`/v1/allocation/${id}/checks`, signal)).filter((c) => c.Service === name));
    } catch (err) {
      if (err.status !== 404) throw err; // 404: the allocation was removed
    }
  }
  return checks;
}

function drawInstances({ instances, checks }) {
  if (instances.length === 0) return h("p", null, "This service has no instances.");
  return table("Instances", [
    { title: "Address", cell: (i) => h("code", null, address(i.Address, i.Port)) },
    { title: "Allocation", cell: (i) => link(allocationPath(i.AllocID), shortID(i.AllocID)) },
    { title: "Job", cell: (i) => link(jobPath(i.JobID, i.Namespace), i.JobID) },
    { title: "Tags", cell: (i) => (i.Tags ?? []).join(", ") },
    { title: "Checks", cell: (i) => drawChecks(checks.get(i.AllocID)) },
  ], instances, (i) => i.ID);
}

function drawChecks(checks) {
  if (!checks) return "unknown";
  if (checks.length === 0) return "none";
  return checks.map((c) => h("details", { "data-key": c.ID ?? c.Check }, h("summary", null, badge(checkStatus(c)), " ", c.Check), h("pre", null, c.Output || "no output")));
}
