// Package cli has the parts of a command that do not depend on its purpose: standard streams, exit
// codes, checks of arguments, groups of subcommands, questions to the user and signals.
//
// All packages of commands import it. It depends neither on the API nor on jobs.
package cli
