// Package pluginstatus describes plugins and hooks for people.
//
// An agent reports its hooks in this form as a part of its configuration; packages alloc and
// plugin read the report and print it.
package pluginstatus
