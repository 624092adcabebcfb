// Package pluginstatus defines the report of an agent about its plugins and hooks, and prints it.
//
// An agent sends the report, which package pluginreport makes, as a part of its configuration. Packages alloc and
// plugin read the report and print it.
package pluginstatus
