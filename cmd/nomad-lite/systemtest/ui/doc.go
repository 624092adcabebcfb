// Package ui tests the web page, with a browser.
package ui
