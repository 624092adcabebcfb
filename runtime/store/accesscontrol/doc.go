// Package accesscontrol manages the policies, roles and tokens in a store, and finds the rights of a request's token.
//
// Changes are checked with the rules and words of Nomad. Rights are computed once per token and change of access control. The
// package knows nothing of HTTP; a [RequestError] has the status that Nomad's API gives it.
package accesscontrol
