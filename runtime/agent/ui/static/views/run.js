// @ts-check
// The page that plans and runs a job: a text editor, the plan, and the registration.

import { get, put } from "../api.js";
import { effects, jobDiff } from "../diff.js";
import { h, link, replace } from "../dom.js";
import { editor } from "../editor.js";
import { clock, isSet } from "../format.js";
import { go, showError } from "../page.js";
import { notices } from "../notices.js";
import { jobAPI, jobPath } from "../paths.js";
import { placementFailures } from "../placement.js";
import { readSubmission, variablesOf } from "../submission.js";

// draft keeps the text while another page is shown: key says of which job it is.
let draft = { key: "", text: "", variables: "" };

const example = `job "hello" {
  group "hello" {
    task "hello" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "while sleep 1; do date; done"]
      }
    }
  }
}`;

export async function show(main, { query }, signal) {
  document.title = "Run a job – nomad-lite";
  const source = { job: query.get("job"), namespace: query.get("namespace") ?? "default", version: query.get("version") };
  const key = source.job ? JSON.stringify(source) : "";
  if (draft.key !== key) draft = { key, ...(source.job ? await readSource(source, signal) : { text: "", variables: "" }) };
  if (signal.aborted) return;

  const errors = h("div", { class: "error", role: "alert" });
  const result = h("div");
  const edit = editor({ id: "specification", value: draft.text, onchange: () => { draft.text = edit.text(); changed(); } });
  edit.element.querySelector("textarea").placeholder = example;
  const variables = h("textarea", { id: "variables", class: "mono", rows: "4", spellcheck: "false", oninput: () => { draft.variables = variables.value; changed(); } });
  variables.value = draft.variables;
  const file = h("input", { type: "file", hidden: true, onchange: async () => { if (file.files[0]) edit.set(await file.files[0].text()); file.value = ""; } });
  const planButton = h("button", { class: "primary", onclick: plan, "aria-keyshortcuts": "Control+Enter" }, "Plan");

  main.append(
    h("div", { class: "title" }, h("h1", null, source.job ? `Edit job ${source.job}` : "Run a job"), source.job && link(jobPath(source.job, source.namespace), "Back to the job")),
    h("div", { class: "plan" },
      h("div", { class: "plan-text" },
        h("div", { class: "toolbar" }, h("label", { for: "specification" }, "Job specification (HCL or JSON)"),
          h("button", { onclick: () => file.click() }, "Open a file…"), file, planButton),
        edit.element,
        h("p", { id: "specification-keys", class: "dim" }, "Tab indents. Press Escape and then Tab to leave the editor. Ctrl+Enter plans."),
        h("details", { open: draft.variables !== "" }, h("summary", null, "Values of HCL variables"),
          h("label", { for: "variables" }, "One assignment per line: ", h("code", null, 'name = "value"')), variables)),
      h("div", { class: "plan-result" }, errors, result)));
  changed();
  main.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.closest("textarea")) {
      event.preventDefault();
      plan();
    }
  }, { signal });

  // changed removes the plan and the errors, which belong to an earlier text.
  function changed() {
    replace(result, h("p", { class: "dim" }, "Plan shows what the job would change. Nothing runs before you select Run."));
    replace(errors);
    edit.mark([]);
  }

  async function plan() {
    if (planButton.disabled) return;
    changed();
    planButton.disabled = true;
    try {
      const sent = { text: draft.text, variables: draft.variables };
      const job = await parse(sent.text, sent.variables, signal);
      const reply = await put(jobAPI(job.ID, job.Namespace || "default", "plan"), { Job: job, Diff: true }, signal);
      if (signal.aborted) return;
      if (sent.text === draft.text && sent.variables === draft.variables) showPlan(job, reply);
    } catch (err) {
      fail(err);
    } finally {
      planButton.disabled = false;
    }
  }

  function showPlan(job, reply) {
    const isNew = reply.JobModifyIndex === 0;
    const failures = placementFailures(reply.FailedTGAllocs);
    const title = h("h2", { tabindex: "-1" }, `Plan of job ${job.ID}`);
    const runButton = h("button", { class: "primary", onclick: () => run(job, reply, runButton) }, "Run");
    replace(result, h("div", { class: "toolbar" }, title, runButton),
      isNew && h("p", null, "This is a new job."),
      effects(reply.Diff),
      reply.Warnings && h("section", { class: "notice" }, h("h3", null, "Warnings"), h("p", { class: "lines" }, reply.Warnings.trim())),
      failures && h("section", { class: "notice" }, h("h3", null, "Not everything can be placed"), failures,
        h("p", null, "If you run the job, these allocations wait until the node has a place for them.")),
      isSet(reply.NextPeriodicLaunch) && h("p", null, "Next launch: ", clock(reply.NextPeriodicLaunch)),
      isNew ? h("details", null, h("summary", null, "All fields of the job"), jobDiff(reply.Diff)) : [h("h3", null, "Differences"), jobDiff(reply.Diff)]);
    title.focus();
  }

  async function run(job, planned, button) {
    button.disabled = true;
    try {
      const reply = await put("/v1/jobs", {
        Job: job, EnforceIndex: true, JobModifyIndex: planned.JobModifyIndex,
        Submission: { Source: draft.text, Format: draft.text.trimStart().startsWith("{") ? "json" : "hcl2", Variables: draft.variables },
      }, signal);
      draft = { key: "", text: "", variables: "" };
      const path = jobPath(job.ID, job.Namespace || "default");
      notices.set(path, reply.Warnings);
      go(path);
    } catch (err) {
      button.disabled = false;
      fail(err);
    }
  }

  function fail(err) {
    if (signal.aborted) return;
    if (err.status === 403) {
      showError(err); // the draft is kept
      return;
    }
    if (/Enforcing job modify index/.test(err.message)) {
      showConflict();
      return;
    }
    const { places, rest } = placesOf(err.message);
    edit.mark(places.map(({ from }) => from.line));
    replace(errors, h("h2", null, places.length ? "The job specification has errors" : "The agent rejects the job"),
      places.length > 0 && h("ul", { class: "places" }, places.map(({ from, to, text }) => h("li", null,
        h("button", { onclick: () => edit.select(from, to) }, `Line ${from.line}, column ${from.column}`), " ", text))),
      rest && h("p", { class: "lines" }, rest));
    if (places.length) edit.select(places[0].from, places[0].to);
    errors.scrollIntoView({ block: "nearest" });
  }

  // showConflict replaces a plan that is out of date.
  function showConflict() {
    const again = h("button", { class: "primary", onclick: plan }, "Plan again");
    replace(result);
    replace(errors, h("h2", null, "The job was changed since the plan"),
      h("p", null, "Nothing was submitted, and your text is kept. A new plan compares it with the job as it is now: what the other change did, and your text does not have, is shown as removed."),
      h("div", { class: "toolbar" }, again, source.job && h("a", { class: "button", href: jobPath(source.job, source.namespace, "versions") }, "Versions of the job")));
    again.focus();
  }
}

// readSource returns the text of a job and the values of its variables.
async function readSource({ job, namespace, version }, signal) {
  const current = version === null ? await get(jobAPI(job, namespace), signal) : null;
  const submission = await readSubmission(job, namespace, version ?? current.Version, signal);
  if (submission) return { text: submission.Source, variables: variablesOf(submission) };
  const found = current ?? (await get(jobAPI(job, namespace, "versions"), signal)).Versions.find((v) => String(v.Version) === version);
  return { text: JSON.stringify(found, null, 2), variables: "" };
}

// parse returns the job of a text: HCL, the JSON form of HCL, or the JSON of the API. Errors that drivers find in config blocks
// are errors of the text, because their tasks fail whenever they are started.
async function parse(text, variables, signal) {
  if (text.trim() === "") throw new Error("The job specification is empty.");
  const job = jobOfJSON(text);
  if (!job) return put("/v1/jobs/parse?check_config=true", { JobHCL: text, Variables: variables, Canonicalize: true }, signal);
  const { ValidationErrors } = await put("/v1/validate/job", { Job: job }, signal);
  const configErrors = (ValidationErrors ?? []).filter((line) => /^Task group .+, task .+: driver \S+: config: /.test(line));
  if (configErrors.length) throw new Error(configErrors.join("\n"));
  return job;
}

function jobOfJSON(text) {
  if (!text.trimStart().startsWith("{")) return null;
  try {
    const value = JSON.parse(text);
    const job = value.Job ?? value;
    return job.ID ? job : null;
  } catch {
    return null; // the agent reports the place of the error
  }
}

// placesOf finds the lines "input.hcl:LINE,COLUMN-[LINE,]COLUMN: TEXT" in an error of the agent. rest is the other text.
function placesOf(message) {
  const places = [], rest = [];
  for (const line of message.split("\n")) {
    const found = /^(?:Failed to parse job: )?input\.hcl:(\d+),(\d+)-(?:(\d+),)?(\d+): (.*)$/.exec(line);
    if (found) {
      const [fromLine, fromColumn, toLine, toColumn] = [found[1], found[2], found[3] ?? found[1], found[4]].map(Number);
      places.push({ from: { line: fromLine, column: fromColumn }, to: { line: toLine, column: toColumn }, text: found[5] });
    } else if (places.length) {
      places[places.length - 1].text += "\n" + line;
    } else {
      rest.push(line);
    }
  }
  places.sort((a, b) => a.from.line - b.from.line || a.from.column - b.from.column);
  return { places, rest: rest.join("\n").trim() };
}
