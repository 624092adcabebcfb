// Package netfiles writes the texts of /etc/hosts and /etc/resolv.conf for tasks in a network namespace.
//
// The agent uses it to find the name servers of the machine that a namespace reaches. The builtin drivers use it
// for the files that their tasks see. The package writes no files.
package netfiles
