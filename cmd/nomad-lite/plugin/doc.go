// Package plugin has the commands below "nomad-lite plugin": they create, test, install, inspect and list plugins.
//
// The templates of new plugins are in the directory template.
package plugin
