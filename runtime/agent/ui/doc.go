// Package ui has the web page of the agent: static files, and the HTTP handler that serves them.
//
// The page is a client of the public HTTP API only. It is written in modules that browsers load without a
// build step: static/main.js has the table of pages, static/page.js replaces one page by another, static/api.js
// has the requests, static/dom.js the creation of elements, and each module in static/views shows one page;
// static/allocation has the parts of the page of an allocation, and static/vendor has unchanged files of other
// projects.
package ui
