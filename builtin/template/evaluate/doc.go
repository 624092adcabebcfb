// Package evaluate executes templates with consul-template's functions.
//
// It fetches nothing: a request has the data that are known, and the result names the queries that the request does not
// answer. The hook template runs it in processes of their own, because package text/template cannot be cancelled and templates
// can take any amount of memory.
package evaluate
