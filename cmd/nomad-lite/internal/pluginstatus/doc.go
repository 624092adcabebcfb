// Package pluginstatus has the report of an agent about its plugins and hooks, and prints it.
//
// An agent sends the report as a part of its configuration, which package pluginreport makes; packages alloc and
// plugin read the report and print it.
package pluginstatus
