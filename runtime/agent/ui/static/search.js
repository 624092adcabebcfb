// @ts-check
// The search across everything: a dialog with a list of links.

import { get, put } from "./api.js";
import { h, link, replace, update } from "./dom.js";
import { allocationPath, evaluationPath, jobPath, servicePath } from "./paths.js";
import { shortID } from "./format.js";

// contexts are the contexts of the API, in the order of the results: the word for each kind, the path of the page of a
// match, and its text if that is not its ID.
/** @type {[string, string, (match: any) => string, ((match: any) => string)?][]} */
const contexts = [
  ["jobs", "job", (m) => jobPath(m.Scope[1], m.Scope[0])],
  ["groups", "group", (m) => jobPath(m.Scope[1], m.Scope[0], m.ID), (m) => `${m.ID} in ${m.Scope[1]}`],
  ["tasks", "task", (m) => jobPath(m.Scope[1], m.Scope[0], m.Scope[2]), (m) => `${m.ID} in ${m.Scope[1]}`],
  ["allocs", "allocation", (m) => allocationPath(m.Scope[1]), (m) => `${m.ID} ${shortID(m.Scope[1])}`],
  ["services", "service", (m) => servicePath(m.ID, m.Scope[0]), (m) => `${m.ID} of ${m.Scope[1]}`],
  ["vars", "variable", (m) => `/ui/variables/var/${encodeURIComponent(m.Scope[1])}@${encodeURIComponent(m.Scope[0])}`],
  ["evals", "evaluation", (m) => evaluationPath(m.ID)],
  ["deployment", "deployment", (m) => m.path],
  ["nodes", "node", () => "/ui/clients"],
  ["images", "image", (m) => jobPath(m.Scope[1], m.Scope[0], m.Scope[2]), (m) => `${m.ID} of ${m.Scope[1]}`],
  ["commands", "command", (m) => jobPath(m.Scope[1], m.Scope[0], m.Scope[2]), (m) => `${m.ID} of ${m.Scope[1]}`],
];

// minLength is the number of characters that the agent requires.
const minLength = 2;

// typingPause is how long the search waits for another key, in milliseconds.
const typingPause = 80;

// open opens the search. It may be called while the search is open.
export function open() {
  if (document.querySelector("dialog.search")) return;
  let request = new AbortController(), timer = 0;
  const results = h("ul", { id: "search-results" });
  const count = h("p", { class: "dim", role: "status" });
  const input = h("input", {
    type: "search", "aria-label": "Search jobs, groups, tasks, allocations, services, variables, evaluations, deployments and nodes",
    placeholder: "name, or the start of an ID", "aria-controls": "search-results",
    oninput: () => {
      request.abort();
      request = new AbortController();
      clearTimeout(timer);
      timer = setTimeout(run, typingPause, request.signal);
    },
  });

  async function run(signal) {
    const text = input.value.trim();
    if (text.length < minLength) {
      replace(results);
      count.textContent = text ? "Enter two characters or more." : "";
      return;
    }
    try {
      const found = await search(text, signal);
      if (signal.aborted) return;
      update(results, found.items); // a result can have the focus
      count.textContent = found.items.length === 0 ? "Nothing found." : `${found.items.length} found${found.isTruncated ? ", there are more" : ""}. Use the arrow keys.`;
    } catch (err) {
      if (!signal.aborted) replace(results, h("li", { role: "alert", class: "error" }, err.message));
    }
  }

  const dialog = h("dialog", {
    class: "search", "aria-label": "Search", onclose: () => { request.abort(); clearTimeout(timer); dialog.remove(); },
    onclick: (event) => { if (event.target === dialog || event.target.closest("a")) dialog.close(); },
    onkeydown: (event) => moveFocus(event, dialog, input),
  }, input, results, count);
  document.body.append(dialog);
  dialog.showModal();
  input.focus();
}

// search returns the links to all matches, and whether the agent has more.
async function search(text, signal) {
  const [fuzzy, byID] = await Promise.all([
    put("/v1/search/fuzzy?namespace=*", { Text: text, Context: "all" }, signal),
    // The fuzzy search of allocations and nodes compares names. An ID is searched by its prefix.
    /^[0-9a-f-]+$/i.test(text) ? put("/v1/search?namespace=*", { Prefix: text.toLowerCase(), Context: "allocs" }, signal) : undefined,
  ]);
  /** @type {Record<string, any[]>} */
  const matches = { ...fuzzy.Matches };
  const ids = (byID?.Matches.allocs ?? []).map((id) => ({ ID: "", Scope: ["", id] }));
  matches.allocs = [...(matches.allocs ?? []), ...ids];
  matches.deployment = (await Promise.all((matches.deployment ?? []).map((m) => withPath(m, signal)))).filter(Boolean);
  return {
    items: contexts.flatMap(([context, kind, path, textOf]) => (matches[context] ?? []).map((m) =>
      h("li", { "data-key": `${kind} ${path(m)}` }, link(path(m), h("span", { class: "kind" }, kind), textOf ? textOf(m) : m.ID)))),
    isTruncated: Object.values({ ...fuzzy.Truncations, ...byID?.Truncations }).some(Boolean),
  };
}

// withPath adds the path of the page that shows a deployment. It returns null if the deployment no longer exists.
async function withPath(match, signal) {
  try {
    const d = await get(`/v1/deployment/${match.ID}`, signal);
    return { ...match, path: jobPath(d.JobID, d.Namespace, "deployments") };
  } catch (err) {
    if (err.status !== 404) throw err;
    return null;
  }
}

// moveFocus moves with the arrow keys between the input and the results; Enter in the input opens the first result.
function moveFocus(event, dialog, input) {
  const stops = [input, ...dialog.querySelectorAll("a")];
  const at = stops.indexOf(document.activeElement);
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    stops[Math.max(0, Math.min(stops.length - 1, at + (event.key === "ArrowDown" ? 1 : -1)))].focus();
  } else if (event.key === "Enter" && at === 0) {
    event.preventDefault();
    stops[1]?.click();
  }
}
