// Package commands tests the command line: scripts, documents, and facts about the commands of Nomad.
package commands
