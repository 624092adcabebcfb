// Package pages tests the web page of the agent and the site of the documentation, with a browser.
package pages
