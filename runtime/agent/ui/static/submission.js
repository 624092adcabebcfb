// @ts-check
// The source of versions of jobs.

import { get } from "./api.js";
import { jobAPI } from "./paths.js";

// readSubmission returns the source of a version of a job with its variables, null if none is stored.
export async function readSubmission(jobID, namespace, version, signal) {
  try {
    return await get(jobAPI(jobID, namespace, "submission", { version }), signal);
  } catch (err) {
    if (err.status !== 404) throw err;
    return null;
  }
}

// variablesOf returns the values of the HCL variables of a submission as text, one assignment per line.
export function variablesOf(submission) {
  const flags = Object.entries(submission.VariableFlags ?? {}).map(([name, value]) => `${name} = ${JSON.stringify(value)}`);
  return [submission.Variables, ...flags].filter(Boolean).join("\n");
}
