// @ts-check
// The tabs of the page of a job, except the overview. Each function creates a tab for the context of views/job.js: its
// element, and refresh(job), which is called at first and after each change.

import { jobAllocationTable, newestFirst } from "./allocationtable.js";
import { can, get, put, send } from "./api.js";
import { deploymentSection } from "./deployment.js";
import { actionButton, ask, field } from "./dialog.js";
import { countChanges, jobDiff } from "./diff.js";
import { ago, h, link, update } from "./dom.js";
import { address, shortID } from "./format.js";
import { mayEdit } from "./jobactions.js";
import { logs } from "./joblogs.js";
import { liveTable } from "./livetable.js";
import { allocationPath, editPath, servicePath } from "./paths.js";
import { blockedPlacements, evaluationColumns } from "./placement.js";
import { readSubmission, variablesOf } from "./submission.js";

export const jobTabs = { definition, versions, deployments, allocations, evaluations, services, logs };

function definition({ id, namespace, signal }) {
  const element = h("div");
  let shownVersion = -1;
  return {
    element,
    refresh: async (job) => {
      if (job.Version === shownVersion) return;
      const source = await readSubmission(id, namespace, job.Version, signal);
      shownVersion = job.Version;
      const variables = source && variablesOf(source);
      update(element,
        source ? [h("h2", null, "Source"), h("pre", { tabindex: "0", "aria-label": "Source" }, source.Source)] : h("p", null, "The agent has no source of this version: it was submitted as JSON."),
        variables && [h("h2", null, "Values of HCL variables"), h("pre", { tabindex: "0", "aria-label": "Values of HCL variables" }, variables)],
        h("details", { open: !source }, h("summary", null, "JSON of the API"), h("pre", { tabindex: "0", "aria-label": "JSON" }, JSON.stringify(job, null, 2))));
    },
  };
}

function versions({ api, signal, id, namespace }) {
  const list = h("div");
  const choice = h("select", { id: "base", onchange: () => refresh() }, h("option", { value: "" }, "the version before it"));
  const element = h("div", null, h("div", { class: "toolbar" }, h("label", { for: "base" }, "Compare each version with"), choice), list);
  async function refresh() {
    const base = choice.value;
    const reply = await get(api("versions", base === "" ? { diffs: true } : { diffs: true, diff_version: base }), signal);
    update(choice, h("option", { value: "" }, "the version before it"), reply.Versions.map((v) => h("option", { value: v.Version, "data-key": v.Version }, `version ${v.Version}${v.VersionTag ? " " + v.VersionTag.Name : ""}`)));
    update(list, reply.Versions.map((v, i) => versionSection(v, reply.Diffs?.[i], reply.Authors?.[v.Version])));
  }

  function versionSection(v, diff, author) {
    const mayTag = { permitted: can(namespace, "submit-job", "tag-job-version") };
    const isCurrent = v.Version === currentVersion;
    const changes = diff ? countChanges(diff) : 0;
    return h("section", { "data-key": v.Version },
      h("h2", null, `Version ${v.Version}`, v.VersionTag && ` “${v.VersionTag.Name}”`, isCurrent && h("span", { class: "dim" }, " (current)")),
      h("p", null, "Submitted ", ago(v.SubmitTime), author && [" by ", h("span", { title: "token " + author.AccessorID }, author.TokenName || "a token without a name")], v.Stable && ", stable", v.Stop && ", stopped", v.VersionTag?.Description && `: ${v.VersionTag.Description}`),
      diff && h("details", { open: isCurrent }, h("summary", null, changes === 1 ? "1 change" : changes + " changes"), jobDiff(diff)),
      h("div", { class: "toolbar" },
        !isCurrent && h("button", { permitted: can(namespace, "submit-job", "revert-job"), onclick: () => revert(v), "aria-label": `Revert to version ${v.Version}` }, "Revert…"),
        h("a", { class: "button", permitted: mayEdit(namespace), href: editPath(v, v.Version), "aria-label": `Edit version ${v.Version}` }, "Edit"),
        v.VersionTag ? actionButton("Remove tag", () => send(tagPath(v.VersionTag.Name), { method: "DELETE" }).then(refresh), mayTag)
          : h("button", { ...mayTag, onclick: () => tag(v), "aria-label": `Tag version ${v.Version}` }, "Tag…")));
  }

  function revert(v) {
    ask({
      title: `Revert to version ${v.Version}?`, text: "The job specification of this version is submitted as a new version.", action: "Revert",
      run: () => put(api("revert"), { JobID: id, JobVersion: v.Version, EnforcePriorVersion: currentVersion }),
    });
  }

  const tagPath = (name) => api(`versions/${encodeURIComponent(name)}/tag`);
  function tag(v) {
    ask({
      title: `Tag version ${v.Version}`, text: "A version with a tag is kept when the agent removes old versions.", action: "Tag",
      fields: [field("Name", { name: "name", required: true }), field("Description", { name: "description" })],
      run: async (form) => {
        await put(tagPath(form.get("name")), { Version: v.Version, Description: form.get("description") });
        await refresh();
      },
    });
  }

  let currentVersion = -1;
  return { element, refresh: (job) => { currentVersion = job.Version; return refresh(); } };
}

function deployments({ api, signal }) {
  const element = h("div");
  return {
    element,
    refresh: async () => {
      const all = await get(api("deployments"), signal);
      all.sort((a, b) => b.CreateIndex - a.CreateIndex);
      update(element, all.length ? all.map((d) => deploymentSection(d)) : h("p", null, "No deployments. Jobs of type service with an update block have them."));
    },
  };
}

function allocations({ api, signal }) {
  return listTab(jobAllocationTable(signal), "No allocations.", async () => (await get(api("allocations"), signal)).sort(newestFirst));
}

function evaluations({ api, signal }) {
  const top = h("div");
  return listTab(liveTable("Evaluations", Object.values(evaluationColumns), (e) => e.ID, signal), "No evaluations.", async () => {
    const all = await get(api("evaluations"), signal);
    update(top, blockedPlacements(all));
    return all.sort((a, b) => b.CreateIndex - a.CreateIndex);
  }, top);
}

function services({ api, signal }) {
  return listTab(liveTable("Services", [
    { title: "Service", cell: (s) => link(servicePath(s.ServiceName, s.Namespace), s.ServiceName), sort: (s) => s.ServiceName },
    { title: "Address", class: "mono", cell: (s) => address(s.Address, s.Port) },
    { title: "Tags", cell: (s) => (s.Tags ?? []).join(", ") },
    { title: "Allocation", class: "mono", cell: (s) => link(allocationPath(s.AllocID), shortID(s.AllocID)) },
  ], (s) => s.ID, signal), "No services are registered.", () => get(api("services"), signal));
}

// listTab creates a tab with a table. read returns its rows.
function listTab(table, none, read, ...before) {
  const message = h("p");
  table.element.hidden = true;
  return {
    element: h("div", null, before, message, table.element),
    refresh: async () => {
      const rows = await read();
      message.textContent = rows.length ? "" : none;
      table.element.hidden = rows.length === 0;
      table.show(rows);
    },
  };
}
