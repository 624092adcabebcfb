// @ts-check
// The actions on a job: buttons, and the dialogs that they open.

import { can, get, put, send } from "./api.js";
import { encode } from "./base64.js";
import { actionButton, ask, field } from "./dialog.js";
import { checkbox, h } from "./dom.js";
import { go } from "./page.js";
import { editPath, jobAPI, jobPath } from "./paths.js";
import { launchesJobs } from "./status.js";
import { readSubmission } from "./submission.js";

// jobActions returns the buttons for a job of the API, by what its state permits. runningCount is the number of its
// running allocations.
/** @param {API.Job} job */
export function jobActions(job, runningCount) {
  const may = (...capabilities) => can(job.Namespace, ...capabilities);
  const isEnded = job.Stop || job.Status === "dead";
  const isTemplate = launchesJobs(job);
  return h("div", { class: "toolbar", role: "group", "aria-label": "Actions" },
    h("a", { class: "button", href: editPath(job), permitted: mayEdit(job.Namespace) }, "Edit"),
    !isEnded && job.ParameterizedJob && isTemplate && button("Dispatch…", () => dispatch(job), may("dispatch-job")),
    !isEnded && job.Periodic && isTemplate && actionButton("Launch now", () => put(jobAPI(job.ID, job.Namespace, "periodic/force"), {}), { "data-key": "launch", permitted: may("submit-job", "dispatch-job", "force-periodic-job") }),
    runningCount > 0 && button("Restart allocations…", () => restartAll(job), may("alloc-lifecycle")),
    isEnded && button("Start again…", () => startAgain(job), may("submit-job", "register-job")),
    isEnded ? button("Purge…", () => purge(job), may("submit-job", "purge-job"), "danger")
      : button("Stop…", () => stop(job), may("submit-job", "deregister-job", "purge-job"), "danger"));
}

// mayEdit reports whether the token of the tab permits the editor for jobs of a namespace, or with "*" of any.
export const mayEdit = (namespace) => can(namespace, "submit-job", "register-job", "plan-job");

function button(text, onclick, permitted, className) {
  return h("button", { onclick, class: className, permitted, "data-key": text }, text);
}

/** @param {API.Job} job */
function stop(job) {
  ask({
    title: `Stop job “${job.ID}”?`, text: "Its allocations are stopped. A stopped job can be started again.",
    fields: checkbox("Purge: also remove the job with all its versions", "purge"), action: "Stop", danger: true,
    run: (form, closed) => remove(job, form.has("purge"), closed),
  });
}

/** @param {API.Job} job */
function purge(job) {
  ask({
    title: `Purge job “${job.ID}”?`, text: "The job is removed with all its versions. This cannot be undone.",
    action: "Purge", danger: true, run: (form, closed) => remove(job, true, closed),
  });
}

/** @param {API.Job} job */
async function remove(job, isPurge, closed) {
  await send(jobAPI(job.ID, job.Namespace, "", { purge: isPurge }), { method: "DELETE" });
  if (isPurge && !closed.aborted) go("/ui/jobs");
}

/** @param {API.Job} job */
function startAgain(job) {
  ask({
    title: `Start job “${job.ID}” again?`, text: `Its version ${job.Version} is submitted again.`, action: "Start again",
    run: async (form, closed) => {
      const submission = await readSubmission(job.ID, job.Namespace, job.Version, closed);
      if (closed.aborted) return;
      await put("/v1/jobs", { Job: { ...job, Stop: false }, Submission: submission, EnforceIndex: true, JobModifyIndex: job.JobModifyIndex });
    },
  });
}

/** @param {API.Job} job */
function restartAll(job) {
  const progress = h("p", { role: "status" });
  ask({
    title: "Restart all allocations?", text: `The running tasks of job “${job.ID}” are stopped and started again, one allocation after the other.`,
    fields: [checkbox("Also run tasks that have ended, such as prestart tasks", "all"), progress], action: "Restart", danger: true,
    run: async (form, closed) => {
      const running = (await get(jobAPI(job.ID, job.Namespace, "allocations"), closed)).filter((a) => a.ClientStatus === "running" && a.DesiredStatus === "run");
      for (const [i, allocation] of running.entries()) {
        if (closed.aborted) return;
        await put(`/v1/client/allocation/${allocation.ID}/restart`, { AllTasks: form.has("all") });
        progress.textContent = `${i + 1} of ${running.length} restarted`;
      }
    },
  });
}

// scale asks for the count of a group.
/** @param {API.Job} job */
export function scale(job, group) {
  ask({
    title: `Scale group “${group.Name}”`, action: "Scale",
    fields: field("Count", { name: "count", type: "number", min: group.Scaling?.Min ?? 0, max: group.Scaling?.Max, required: true, value: group.Count }),
    run: (form) => put(jobAPI(job.ID, job.Namespace, "scale"),
      { Count: Number(form.get("count")), Target: { Job: job.ID, Group: group.Name }, Message: "scaled on the web page" }),
  });
}

// dispatch asks for the payload and the metadata of a parameterized job, and shows the job that it launches.
/** @param {API.Job} job */
export function dispatch(job) {
  const { Payload, MetaRequired, MetaOptional } = job.ParameterizedJob;
  const meta = (name, isRequired) => field(`${name} (${isRequired ? "required" : "optional"})`,
    { name: "meta." + name, required: isRequired, value: job.Meta?.[name] ?? "" });
  ask({
    title: `Dispatch job “${job.ID}”`, action: "Dispatch",
    fields: [
      (MetaRequired ?? []).map((name) => meta(name, true)), (MetaOptional ?? []).map((name) => meta(name, false)),
      Payload !== "forbidden" && field(`Payload (${Payload || "optional"})`, { tag: "textarea", name: "payload", rows: "6", class: "mono", required: Payload === "required" }),
    ],
    run: async (form, closed) => {
      const values = [...form].filter(([name, value]) => name.startsWith("meta.") && value !== "").map(([name, value]) => [name.slice(5), value]);
      const payload = /** @type {string} */ (form.get("payload"));
      const reply = await put(jobAPI(job.ID, job.Namespace, "dispatch"),
        { Meta: Object.fromEntries(values), Payload: payload ? encode(new TextEncoder().encode(payload)) : null });
      if (!closed.aborted) go(jobPath(reply.DispatchedJobID, job.Namespace));
    },
  });
}
