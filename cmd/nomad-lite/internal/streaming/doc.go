// Package streaming reads streams of the HTTP API: frames of files and the output of tasks.
//
// It compensates for the Go client, which loses the error of a stream and delivers the end of
// an output late. Packages alloc, logs, event, agent and execsession use it.
package streaming
