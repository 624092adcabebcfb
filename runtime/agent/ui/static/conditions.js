// @ts-check
// What is wrong with the agent and its machine: the first lines of each page.

import { get, isRejected, poll } from "./api.js";
import { h, update } from "./dom.js";
import { clock } from "./format.js";

// conditionLines creates the lines of a report: one for each condition, or one that says that all is well.
/** @param {API.GetResponse<"/v1/agent/conditions">} report */
export function conditionLines(report) {
  if (!report.Conditions.length) return [h("p", { class: "well" }, `All is well at ${clock(report.LookedAt)}.`)];
  return report.Conditions.map((c) => h("p", { class: `condition condition-${c.Severity}` },
    h("strong", null, c.Severity === "error" ? "Error: " : "Warning: ", c.Summary, "."),
    h("span", { class: "dim" }, ` Since ${clock(c.Since)}. `), c.Remedy, ".",
    (c.Commands ?? []).map((command) => h("code", null, command))));
}

const refreshInterval = 10_000; // milliseconds; the agent looks as often

// refreshConditions fills the element with the present conditions. The element is hidden if the token does not permit them. It keeps its
// lines, which have a time, while the agent does not answer, so that the page below does not move.
async function refreshConditions(element) {
  try {
    update(element, ...conditionLines(await get("/v1/agent/conditions")));
    element.hidden = false;
  } catch (err) {
    element.hidden = isRejected(err);
  }
}

// showConditions keeps the element up to date while the page is visible, and does not return.
export const showConditions = (element) => poll(refreshInterval, new AbortController().signal, () => refreshConditions(element));
