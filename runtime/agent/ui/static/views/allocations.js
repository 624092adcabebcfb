// @ts-check
// The list of all allocations.

import { allocationColumns, allocationTable } from "../allocationtable.js";
import { can, watch } from "../api.js";
import { ago, h, linkIf, update } from "../dom.js";
import { showError } from "../page.js";
import { allocationPath, rememberFilter } from "../paths.js";

const states = ["pending", "running", "complete", "failed", "lost", "unknown"];

export function show(main, { query }, signal) {
  document.title = "Allocations – nomad-lite";
  let allocs = [];
  const text = h("input", { type: "search", "aria-label": "Filter by name, id or message", placeholder: "name, id, message", value: query.get("text"), oninput: draw });
  const state = h("select", { "aria-label": "Filter by status", onchange: draw }, h("option", { value: "" }, "all states"),
    states.map((s) => h("option", { selected: query.get("status") === s }, s)));
  const job = h("select", { "aria-label": "Filter by job", onchange: draw });
  const count = h("span", { role: "status", class: "dim" });
  const { id, name, status, version, created } = allocationColumns;
  const columns = [
    id, name, allocationColumns.job, status, version, created,
    { title: "Changed", cell: (a) => ago(a.ModifyTime), sort: (a) => -a.ModifyTime },
    { title: "", cell: (a) => linkIf(can(a.Namespace, "read-job"), allocationPath(a.ID, "timeline"), "Time line") },
  ];
  const table = allocationTable(columns, signal);
  const none = h("p", null, "No allocation is like this.");
  main.append(h("h1", null, "Allocations"), h("div", { class: "toolbar" }, text, state, job, count), table.element, none);
  jobOptions();

  function jobOptions() {
    const selected = job.value || (query.get("job") ?? "");
    const names = [...new Set([selected, ...allocs.map((a) => a.JobID)])].filter(Boolean).sort();
    update(job, h("option", { value: "" }, "all jobs"), names.map((name) => h("option", { value: name, "data-key": name, selected: name === selected }, name)));
  }

  function draw() {
    const wanted = text.value.toLowerCase();
    const shown = allocs.filter((a) => (!state.value || a.ClientStatus === state.value) && (!job.value || a.JobID === job.value) &&
      [a.Name, a.ID, a.JobID, a.ClientDescription].some((s) => s?.toLowerCase().includes(wanted)));
    count.textContent = shown.length === allocs.length ? `${allocs.length} allocations` : `${shown.length} of ${allocs.length} allocations`;
    none.hidden = shown.length > 0;
    table.element.hidden = shown.length === 0;
    table.show(shown);
    rememberFilter({ text: text.value, status: state.value, job: job.value });
  }

  return watch("/v1/allocations?namespace=*&task_states=false&reverse=true", signal, (value) => {
    allocs = value.sort((a, b) => b.CreateTime - a.CreateTime);
    jobOptions();
    draw();
  }, showError);
}
