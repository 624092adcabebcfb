// Package ui has the command "nomad-lite ui", which opens the web page of an agent in a browser.
//
// If the agent listens only on its unix socket, the command itself serves the page on a loopback port while the session
// lasts. DESIGN.md says how other accounts and other web sites are kept out.
package ui
