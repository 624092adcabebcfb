// Package bench measures what the documented limits of memory, time and size are about, and compares the figures with
// reference programs in the same run.
package bench
