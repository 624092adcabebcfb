// Package replacefile replaces files atomically: a full disk or the death of the process leaves the old content and not half of
// the new one.
package replacefile
