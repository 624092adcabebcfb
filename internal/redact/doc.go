// Package redact removes secret values from texts that leave the place where the values are known: errors, events,
// log lines.
//
// A secret is whatever was handed out: the items of variables and of secret blocks. The texts come from programs that
// have the values, such as plugins and the functions of a template, so they are searched for the values, not for the
// places where values should be. See DESIGN.md for what the search cannot find.
package redact
