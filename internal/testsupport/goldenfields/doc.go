// Package goldenfields compares the names and kinds of stored fields with a golden list. What another build has to read,
// such as the state file of the agent or the state of a driver, has the names of fields as its format: a field that
// disappears, for example because an editor renames it, is lost in what earlier builds have written.
//
// Tests import it.
package goldenfields
