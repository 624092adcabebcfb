// Package pages tests the web page, with a browser.
package pages
