// Package streaming reads streams of the HTTP API: the frames of files and the output of tasks.
//
// It works around two faults of Nomad's Go client, which loses the error of a stream and delivers the end of an output
// late. Packages alloc, logs, event, agent and execsession use it.
package streaming
