// Package ui has the command "nomad-lite ui", which opens the web page of an agent in a browser.
//
// The page of an agent that listens only on its unix socket is served by the command itself, on a loopback port, for
// the time of the session. See DESIGN.md for how other accounts and other web sites are kept out.
package ui
