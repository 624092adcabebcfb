// The search across everything: a dialog with a list of links.

import { put } from "./api.js";
import { h, link, replace } from "./dom.js";

// paths returns the path of the page of a match, by the context of the API.
const paths = {
  jobs: (m) => `/ui/jobs/${encodeURIComponent(m.Scope[1] ?? m.ID)}@${encodeURIComponent(m.Scope[0] ?? "default")}`,
  groups: (m) => `/ui/jobs/${encodeURIComponent(m.Scope[1])}@${encodeURIComponent(m.Scope[0])}/${encodeURIComponent(m.ID)}`,
  tasks: (m) => `/ui/jobs/${encodeURIComponent(m.Scope[1])}@${encodeURIComponent(m.Scope[0])}/${encodeURIComponent(m.Scope[2])}`,
  allocs: (m) => `/ui/allocations/${m.Scope[1] ?? m.ID}`,
  nodes: () => "/ui/clients",
};

// minLength is the number of characters that the agent requires.
const minLength = 2;

// open opens the search. It may be called while the search is open.
export function open() {
  if (document.querySelector("dialog.search")) return;
  let request = new AbortController();
  const results = h("ul", { "aria-live": "polite" });
  const input = h("input", {
    type: "search", "aria-label": "Search jobs, groups, tasks and allocations", placeholder: "job, group, task, allocation",
    oninput: async () => {
      request.abort();
      request = new AbortController();
      const { signal } = request;
      const text = input.value.trim();
      try {
        const reply = text.length >= minLength ? await put("/v1/search/fuzzy?namespace=*", { Text: text, Context: "all" }, signal) : { Matches: {} };
        if (!signal.aborted) replace(results, items(reply.Matches));
      } catch (err) {
        if (!signal.aborted) replace(results, h("li", { role: "alert" }, err.message));
      }
    },
  });
  const dialog = h("dialog", { class: "search", "aria-label": "Search", onclose: () => { request.abort(); dialog.remove(); } }, input, results);
  dialog.addEventListener("click", (event) => { if (event.target.closest("a")) dialog.close(); });
  dialog.addEventListener("keydown", (event) => moveFocus(event, dialog));
  document.body.append(dialog);
  dialog.showModal();
  input.focus();
}

function items(matches) {
  const found = Object.entries(paths).flatMap(([context, path]) =>
    (matches?.[context] ?? []).map((m) => h("li", null, link(path(m), h("span", { class: "kind" }, context), m.ID))));
  return found.length ? found : h("li", null, "Nothing found.");
}

// moveFocus moves with the arrow keys between the input and the results; Enter in the input opens the first result.
function moveFocus(event, dialog) {
  const stops = [dialog.querySelector("input"), ...dialog.querySelectorAll("a")];
  const at = stops.indexOf(document.activeElement);
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    stops[Math.max(0, Math.min(stops.length - 1, at + (event.key === "ArrowDown" ? 1 : -1)))].focus();
  } else if (event.key === "Enter" && at === 0) {
    stops[1]?.click();
  }
}
