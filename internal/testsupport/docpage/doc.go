// Package docpage compares pages of docs, or a part of a page, with the Markdown that the tables in the code give.
//
// The package that owns a table, for example the settings of the agent, makes the Markdown in a test and calls [Check] or
// [CheckPart]. make reference writes the page. A page or a part that is made in this way is never edited by hand.
//
// Tests import it.
package docpage
