// Package conditions reports problems with the agent and its machine: a list of conditions, each with a severity, a sentence, a
// remedy and the time since when it exists. It is empty when all is well.
//
// [Find] is a pure function of [Facts], driven by a table: a new condition kind is a table row, and a fact if the row needs a new
// one. A [Tracker] looks at the facts in intervals, and reports when conditions begin and end.
//
// Job health is not a condition: see package jobhealth.
package conditions
