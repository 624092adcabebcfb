// Package conditions reports what is wrong with the agent and its machine: a list of conditions, each with a severity, a
// sentence, a remedy and the time since when it exists. It is empty when all is well.
//
// [Find] is a pure function of [Facts], by the table of kinds: a new kind of condition is a row of the table, and a fact if the
// row needs a new one. A [Tracker] looks at the facts in intervals, and reports the conditions that begin and end.
//
// The health of jobs is no condition: see package jobhealth.
package conditions
