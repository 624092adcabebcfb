// Package evaluate executes templates with consul-template's functions.
//
// It fetches nothing: a request has the data that are known, and the result names the queries that the request does not
// answer. The hook template runs this package in separate processes, because text/template cannot be cancelled and a
// template can use any amount of memory.
package evaluate
