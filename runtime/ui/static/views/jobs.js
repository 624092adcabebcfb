// The list of all jobs.

import { watch } from "../api.js";
import { badge, h, link, replace, table } from "../dom.js";
import { age } from "../format.js";
import { showError } from "../main.js";

// jobPath returns the path of the page of a job.
export function jobPath(id, namespace) {
  return `/ui/jobs/${encodeURIComponent(id)}@${encodeURIComponent(namespace)}`;
}

export function show(main, parameters, signal) {
  document.title = "Jobs – nomad-lite";
  let jobs = [];
  const list = h("div");
  const filter = h("input", { type: "search", "aria-label": "Filter by name", placeholder: "filter", oninput: () => draw() });
  main.append(h("h1", null, "Jobs"), h("div", { class: "toolbar" }, filter), list);
  function draw() {
    const shown = jobs.filter((job) => job.ID.toLowerCase().includes(filter.value.toLowerCase()));
    replace(list, shown.length === 0 ? h("p", null, jobs.length ? "No job has this name." : "No jobs.") : table("Jobs", [
      { title: "Name", cell: (job) => link(jobPath(job.ID, job.Namespace), job.ID) },
      { title: "Namespace", cell: (job) => job.Namespace },
      { title: "Type", cell: (job) => job.Type },
      { title: "Status", cell: (job) => badge(job.Status) },
      { title: "Age", cell: (job) => age(job.SubmitTime) },
    ], shown, (job) => job.Namespace + "/" + job.ID));
  }
  return watch("/v1/jobs?namespace=*", signal, (value) => { jobs = value; draw(); }, showError);
}
