// Package audit writes who has requested what: a line of JSON for each request, in the form of Nomad Enterprise's audit log, into
// files that are rotated.
//
// The HTTP API calls [Log.Record]. The package knows no routes and no rights.
package audit
